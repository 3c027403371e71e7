// Details of a point on hover and focus; without this script the browser's own tooltips show the same text.
(() => {
  const tip = document.getElementById("tip");
  for (const point of document.querySelectorAll(".pt")) {
    const title = point.querySelector("title");
    const [name, ...lines] = title.textContent.split("\n");
    point.setAttribute("aria-label", title.textContent);
    title.remove();
    const show = () => {
      const head = document.createElement("strong");
      head.textContent = name;
      tip.replaceChildren(head, ...lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
      tip.hidden = false;
      const box = point.getBoundingClientRect();
      const left = Math.min(box.left + box.width / 2 + 14, innerWidth - tip.offsetWidth - 8);
      const above = box.top - tip.offsetHeight - 8;
      tip.style.left = `${Math.max(8, left) + scrollX}px`;
      tip.style.top = `${(above > 0 ? above : box.bottom + 8) + scrollY}px`;
    };
    const hide = () => { tip.hidden = true; };
    point.addEventListener("pointerenter", show);
    point.addEventListener("focus", show);
    point.addEventListener("pointerleave", hide);
    point.addEventListener("blur", hide);
  }
  for (const key of document.querySelectorAll("[data-series]")) {
    const charts = key.closest("section").querySelectorAll(".chart");
    const pick = (on) => charts.forEach((chart) => {
      chart.classList.toggle("picking", on);
      chart.querySelectorAll(`.${key.dataset.series}-pt`).forEach((point) => point.classList.toggle("picked", on));
    });
    key.addEventListener("pointerenter", () => pick(true));
    key.addEventListener("pointerleave", () => pick(false));
  }
})();
