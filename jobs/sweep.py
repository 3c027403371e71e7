"""Run an experiment: one Ray Tune trial per cell, results to Arrow.

    python -m jobs.sweep experiments/demo.yaml --results results/demo [--resume]
    ray job submit --working-dir . -- python -m jobs.sweep experiments/demo.yaml --results /shared/results/demo

Each finished cell is on disk at once. After Ctrl-C or a crash the same command with ``--resume`` runs only what is
missing or failed. Inside ``ray job submit`` give ``--results`` as an absolute path: the job runs in a temporary copy.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray import tune
from tqdm import tqdm

from analysis import ResultsError, claim_results, finished_cells, write_cell
from cluster.actors import PairResources, PlacementError, RayPair
from cluster.models.demo import DRAFTER_DIR, DemoUnavailableError
from cluster.models.dflash import CheckpointError
from cluster.models.loading import ModelError, fingerprint, load_tokenizer, model_directory
from cluster.pair import LocalPair, Pair
from jobs.cell import Cell, Identity, cell_row, code_version, run_cell
from jobs.experiment import Experiment, ExperimentError, load_experiment
from jobs.ray_session import start_ray

_ROOT = Path(__file__).resolve().parent.parent
_KNOWN_ERRORS = (ExperimentError, ResultsError, ModelError, CheckpointError, DemoUnavailableError, PlacementError)


class CellTrainable(tune.Trainable):
    """A Tune trial: one cell. The pair stays warm from one cell to the next (``reuse_actors``)."""

    def setup(self, config: dict[str, Any]) -> None:
        """Load the pair of the experiment."""
        self._experiment = Experiment.model_validate(config["experiment"])
        self._identity = Identity(**config["identity"])
        self._results = Path(config["results"])
        self._cell = config["cell"]
        self._tokenizer = load_tokenizer(self._experiment.verifier.spec())
        self._pair = self._make_pair()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next cell; everything else is the same for the whole experiment."""
        self._cell = new_config["cell"]
        return True

    def step(self) -> dict[str, Any]:
        """Run the cell and write it; a second failure becomes a failed row."""
        cell = Cell.of(self._cell, self._experiment, self._identity)
        for attempt in (1, 2):
            try:
                row, generations = run_cell(cell, self._pair, self._tokenizer, self._experiment, self._identity)
                break
            except Exception as error:  # noqa: BLE001 (whatever a cell raises, the sweep goes on)
                if attempt == 2:
                    reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
                    row, generations = cell_row(cell, self._experiment, self._identity, error=reason), []
                    break
                self._pair.close()
                self._pair = self._make_pair()
        write_cell(self._results, row, generations)
        return {"status": row["status"], "cell_id": cell.cell_id, tune.result.DONE: True}

    def cleanup(self) -> None:
        """Release the pair."""
        self._pair.close()

    def _make_pair(self) -> Pair:
        spec = self._experiment.pair()
        if self._experiment.resources.transport == "local":
            pair: Pair = LocalPair(spec)
        else:
            group = ray.util.get_current_placement_group()
            pair = RayPair(spec, _pair_resources(self._experiment), group)
        return pair


class _Progress(tune.Callback):
    """A progress bar over cells, with the time left. Tune pickles its callbacks, so the bar is made when it is needed."""

    def __init__(self, total: int) -> None:
        self._total, self._failed = total, 0
        self._bar: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bar": None}

    def setup(self, *_: Any, **__: Any) -> None:
        self._bar = tqdm(total=self._total, unit="cell", file=sys.stderr, dynamic_ncols=True, smoothing=0.05)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:  # noqa: ARG002
        self._failed += trial.last_result.get("status") == "failed"
        self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:  # noqa: ARG002
        self._bar.close()


def _pair_resources(experiment: Experiment) -> PairResources:
    wanted = experiment.resources
    return PairResources(wanted.draft_cpus, wanted.verify_cpus, wanted.draft_gpus, wanted.verify_gpus)


def _trial_resources(experiment: Experiment) -> tune.PlacementGroupFactory:
    """A trial's placement group: the pair's two bundles, or one for both models in a local pair."""
    draft, verify = _pair_resources(experiment).bundles()
    if experiment.resources.transport == "ray":
        return tune.PlacementGroupFactory([{}, draft, verify], strategy="PACK")
    both = {key: draft.get(key, 0.0) + verify.get(key, 0.0) for key in {*draft, *verify}}
    return tune.PlacementGroupFactory([both])


def check_resources(factory: tune.PlacementGroupFactory) -> None:
    """Refuse an experiment whose trials the cluster can never place; Tune itself would wait for ever.

    Raises:
        PlacementError: it names what a trial needs and what the cluster has.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total = ray.cluster_resources()
    needed = factory.required_resources
    fits = all(total.get(key, 0.0) >= amount for key, amount in needed.items())
    fits &= all(any(all(n.get(k, 0.0) >= v for k, v in bundle.items()) for n in nodes) for bundle in factory.bundles)
    if not fits:
        have = {key: total.get(key, 0.0) for key in ("CPU", "GPU")}
        raise PlacementError(
            f"Expected a cluster that can place a trial of {factory.bundles}, got one with {have}; "
            "ask for less under `resources` in the experiment, or add nodes"
        )


def identify(experiment: Experiment) -> Identity:
    """The fingerprints of an experiment, its models and the code."""
    drafter = model_directory(experiment.drafter.spec(), demo=DRAFTER_DIR)
    return Identity(
        experiment=experiment.name,
        experiment_fingerprint=experiment.fingerprint(),
        code_version=code_version(_ROOT),
        verifier_fingerprint=fingerprint(model_directory(experiment.verifier.spec())),
        drafter_fingerprint=fingerprint(drafter),
        device=device_name(experiment.verifier.device),
    )


def device_name(device: str) -> str:
    """The device in words."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else device
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU {models[0]}" if models else f"CPU {platform.machine()}"


def environment(identity: Identity, argv: Sequence[str]) -> dict[str, Any]:
    """What a run is remembered by, beside its results."""
    packages = ("torch", "transformers", "ray", "pyarrow", "numpy")
    return {
        "argv": list(argv),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in packages},
        **asdict(identity),
    }


def run_sweep(experiment: Experiment, results: Path, resume: bool) -> int:
    """Run the cells that are missing; returns how many failed.

    Raises:
        ResultsError: the directory belongs to another experiment, or holds cells and ``resume`` is False.
        PlacementError: the cluster cannot place a trial.
    """
    identity = identify(experiment)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = finished_cells(results) if results.exists() else set()
    if done and not resume:
        raise ResultsError(f"Expected {results} to hold no finished cells, got {len(done)}; pass --resume to go on")
    claim_results(results, experiment.name, identity.experiment_fingerprint, environment(identity, sys.argv))
    configs = [c for c in experiment.cells() if Cell.of(c, experiment, identity).cell_id not in done]
    print(f"{len(experiment.cells())} cells, {len(configs)} to run", file=sys.stderr)
    if not configs:
        return 0
    random.Random(experiment.seed).shuffle(configs)  # a slow hour must not fall on one corner of the grid
    start_ray()
    factory = _trial_resources(experiment)
    check_resources(factory)
    return _run_trials(experiment, identity, results, configs, factory)


def _run_trials(
    experiment: Experiment,
    identity: Identity,
    results: Path,
    configs: list[dict[str, Any]],
    factory: tune.PlacementGroupFactory,
) -> int:
    storage = results / ".tune"
    space = {
        "experiment": experiment.model_dump(mode="json"),
        "identity": asdict(identity),
        "results": str(results),
        "cell": tune.grid_search(configs),
    }
    tuner = tune.Tuner(
        tune.with_resources(CellTrainable, factory),
        param_space=space,
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            name=f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}",
            storage_path=str(storage),
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            callbacks=[_Progress(len(configs))],
            verbose=0,
        ),
    )
    try:
        grid = tuner.fit()
    finally:
        shutil.rmtree(storage, ignore_errors=True)
    for result in (grid[i] for i in range(len(grid))):
        if result.error is not None:  # the trial's process died twice
            cell = Cell.of((result.config or {})["cell"], experiment, identity)
            reason = (str(result.error).strip().splitlines() or ["the trial ended without a result"])[-1]
            write_cell(results, cell_row(cell, experiment, identity, error=reason), [])
    wanted = {Cell.of(config, experiment, identity).cell_id for config in configs}
    return len(wanted - finished_cells(results))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m jobs.sweep``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path, help="an experiment's YAML file")
    parser.add_argument("--results", type=Path, required=True, help="directory of the Arrow results")
    parser.add_argument("--resume", action="store_true", help="go on with what is missing or failed")
    args = parser.parse_args(argv)
    try:
        failed = run_sweep(load_experiment(args.experiment), args.results.absolute(), args.resume)
    except _KNOWN_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        ray.shutdown()  # the running cells end here and now
        kept = len(finished_cells(args.results)) if args.results.exists() else 0
        print(f"stopped; {kept} finished cells are kept, the same command with --resume goes on", file=sys.stderr)
        return 130
    if failed:
        print(f"{failed} cells failed; their reasons are in the results, --resume tries them again", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
