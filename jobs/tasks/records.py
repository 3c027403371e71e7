"""The kinds of record behind the text-to-JSON task: how to draw one and how to say it in a sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from jobs.tasks.words import words

Record = dict[str, str | int | float]


@dataclass(frozen=True)
class Kind:
    """A record type: `record` draws its values, `sentences` are format strings over the record's keys."""

    record: Callable[[random.Random], Record]
    sentences: tuple[str, ...]

    def pair(self, sentence: str, rng: random.Random) -> tuple[str, str]:
        """A sentence after the given format string, and the JSON text of the facts it states."""
        record = self.record(rng)
        return sentence.format(**record), json.dumps(record)


def _full_name(rng: random.Random) -> str:
    return f"{rng.choice(words('first_names'))} {rng.choice(words('last_names'))}"


def _price(rng: random.Random) -> float:
    return round(rng.randint(3, 99) + rng.choice((0.25, 0.49, 0.75, 0.95, 0.99)), 2)


def _person(rng: random.Random) -> Record:
    return {
        "name": _full_name(rng),
        "age": rng.randint(18, 79),
        "city": rng.choice(words("cities")),
        "job": rng.choice(words("jobs")),
    }


def _order(rng: random.Random) -> Record:
    return {
        "customer": _full_name(rng),
        "product": rng.choice(words("products")),
        "quantity": rng.randint(2, 40),
    }


def _goods(rng: random.Random) -> Record:
    return {
        "product": rng.choice(words("products")),
        "color": rng.choice(words("colors")),
        "price": _price(rng),
    }


def _event(rng: random.Random) -> Record:
    return {
        "event": rng.choice(words("events")),
        "city": rng.choice(words("cities")),
        "date": f"{rng.choice(words('months'))} {rng.randint(1, 28)}",
    }


def _trip(rng: random.Random) -> Record:
    start, end = rng.sample(words("cities"), 2)
    time = f"{rng.randint(6, 22):02d}:{rng.randrange(0, 60, 5):02d}"
    return {"from": start, "to": end, "time": time}


def _weather(rng: random.Random) -> Record:
    return {
        "city": rng.choice(words("cities")),
        "day": f"{rng.choice(words('months'))} {rng.randint(1, 28)}",
        "sky": rng.choice(words("skies")),
        "temperature": rng.randint(2, 39),
    }


def _pet(rng: random.Random) -> Record:
    return {
        "owner": rng.choice(words("first_names")),
        "animal": rng.choice(words("pets")),
        "name": rng.choice(words("pet_names")),
        "age": rng.randint(2, 15),
    }


KINDS = (
    Kind(
        _person,
        (
            "{name} is {age} years old, lives in {city} and works as a {job}.",
            "Meet {name}, a {job} from {city}, aged {age}.",
            "In {city} we talked to {name}, {age}, who is a {job}.",
        ),
    ),
    Kind(
        _order,
        (
            "{customer} ordered {quantity} pieces of the item {product}.",
            "An order came in from {customer}: {product}, quantity {quantity}.",
            "Please send {quantity} units of {product} to {customer}.",
        ),
    ),
    Kind(
        _goods,
        (
            "The {color} {product} costs {price} dollars.",
            "For {price} dollars you can buy the {product} in {color}.",
            "We sell one {product}, color {color}, at {price} dollars.",
        ),
    ),
    Kind(
        _event,
        (
            "The {event} takes place in {city} on {date}.",
            "On {date}, {city} will host the {event}.",
            "Join us for the {event} on {date} in {city}.",
        ),
    ),
    Kind(
        _trip,
        (
            "The train from {from} to {to} leaves at {time}.",
            "At {time} a bus departs from {from} and goes to {to}.",
            "We will fly from {from} at {time} and land in {to}.",
        ),
    ),
    Kind(
        _weather,
        (
            "It will be {sky} in {city} on {day} with {temperature} degrees.",
            "On {day} expect {temperature} degrees and a {sky} sky in {city}.",
            "The forecast for {city}: {sky}, {temperature} degrees on {day}.",
        ),
    ),
    Kind(
        _pet,
        (
            "{owner} has a {animal} called {name}, {age} years old.",
            "{name} is the {animal} of {owner} and is {age} years old.",
            "The {animal} {name}, aged {age}, belongs to {owner}.",
        ),
    ),
)
