const given = [...document.querySelectorAll("main > .card")];

/** Sort the photographs: those with the worst captions first, or as they are in the data set. */
function arrange() {
  const by = view.order.value, sign = by === "disagreement" ? -1 : 1;
  const sorted = by ? [...given].sort((a, b) => sign * (a.dataset[by] - b.dataset[by])) : given;
  document.querySelector("main").append(...sorted);
}

view.order.addEventListener("input", arrange);
arrange();  // a browser may keep the choice when the page is loaded again
