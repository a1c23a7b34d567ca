const given = [...document.querySelectorAll("main > .card")];
const plain = text => text.normalize("NFKC").toLowerCase();
const textOf = card => [card.ariaLabel, ...[...card.querySelectorAll(".caption, li")].map(one => one.dataset.text ?? one.textContent)];
const texts = new Map(given.map(card => [card, plain(textOf(card).join("\n"))]));

/** Sort the photographs by the chosen measure, or as they were given. */
function arrange() {
  const by = view.order.value.replace("-", ""), sign = view.order.value.startsWith("-") ? -1 : 1;
  const sorted = by ? [...given].sort((a, b) => sign * (a.dataset[by] - b.dataset[by])) : given;
  document.querySelector("main").append(...sorted);
}

/** Show the photographs whose texts have every word of the search; only those with a mark of doubt, if that is chosen. */
function find() {
  const words = plain(view.words.value).split(/\s+/);  // an empty word is in every text
  const fits = card => (!view.not_sure?.checked || card.querySelector(".confidence strong")) && words.every(word => texts.get(card).includes(word));
  for (const card of given) card.hidden = !fits(card);
  const found = given.filter(card => !card.hidden).length;
  document.getElementById("found").value = found < given.length ? `${found} of ${given.length} photographs` : "";
}

document.getElementById("view").addEventListener("input", event => { if (event.target === view.order) arrange(); else find(); });
arrange();  // a browser may keep the choices when the page is loaded again
find();
