const DARKEST = {{ darkest }};
{% include "page.js" %}

const settings = document.getElementById("settings"), chooser = document.getElementById("chooser");
const cards = document.getElementById("cards"), again = document.getElementById("again");
const TRIES = 30;               // attempts of a request while all places are taken
const asked = new WeakMap();    // card -> its photograph and the fields of its request
let line = Promise.resolve();   // photographs are sent one after the other

const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));
const element = (name, properties) => Object.assign(document.createElement(name), properties);
const options = () => [...new FormData(settings)].filter(([, value]) => value);

/** Send a photograph and return the response; throw an error with the server's sentence. */
async function ask(address, file, fields) {
  const form = new FormData();
  for (const [name, value] of fields) form.append(name, value);
  form.append("photograph", file, file.name || "pasted");
  for (let tries = TRIES; ; tries--) {
    const answer = await fetch(address, {method: "POST", body: form}).catch(() => {
      throw new Error("the server does not answer; is it still running?");
    });
    if (answer.ok) return answer;
    const wait = answer.headers.get("Retry-After");
    if (!wait || !tries) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
    await pause(Number(wait));
  }
}

/** Return a card for a photograph that waits for its caption. */
function begin(file) {
  const card = element("article", {className: "card waiting", ariaLabel: file.name || "pasted"});
  const head = element("header"), preview = element("img", {className: "preview", alt: "", src: URL.createObjectURL(file)});
  preview.onload = preview.onerror = event => {
    URL.revokeObjectURL(preview.src);
    if (event.type === "error") preview.remove();
  };
  head.append(element("h2", {textContent: card.ariaLabel}));
  card.append(head, preview, element("p", {className: "place", textContent: "waiting …"}));
  asked.set(card, {file, fields: options()});
  return card;
}

async function describe(card) {
  const {file, fields} = asked.get(card), note = card.querySelector(".place");
  try {
    note.textContent = "the model is looking …";
    if (file.size > 1e6 * settings.dataset.megabytes)
      throw new Error(`${card.ariaLabel} has more than ${settings.dataset.megabytes} MB; choose a smaller copy`);
    const held = element("template", {innerHTML: await (await ask("cards", file, fields)).text()});
    const fresh = held.content.querySelector(".card");
    asked.set(fresh, {file, fields});
    card.replaceWith(fresh);
    present(fresh);
  } catch (fault) {
    card.classList.remove("waiting");
    note.className = "fault";
    note.textContent = fault.message;
    announce(fault.message);
  }
}

/** Show a card that has come: its caption appears word by word, unless motion is to be reduced. */
function present(card) {
  share(card);
  shade();
  for (const panel of panelsOf(card)) {
    const save = element("button", {type: "button", className: "keep", textContent: "Save as a picture"});
    save.onclick = () => keep(card, panel).catch(fault => { panel.querySelector(".place").textContent = fault.message; announce(fault.message); });
    panel.append(save);
    announce(panel.querySelector("img").alt);
  }
  if (still.matches) return;
  card.classList.add("writing");
  play(card, 0);
}

/** Request the picture of a panel, and download it. */
async function keep(card, panel) {
  const {file, fields} = asked.get(card), model = panel.ariaLabel;
  const picture = await ask("api/picture", file, [...fields.filter(([name]) => name !== "model"), ["model", model]]);
  const address = URL.createObjectURL(await picture.blob());
  element("a", {href: address, download: `${(file.name || "pasted").replace(/\.[^.]*$/, "")}.png`}).click();
  setTimeout(URL.revokeObjectURL, 60_000, address);
}

/** Announce a text to screen readers. */
function announce(text) {
  document.getElementById("status").append(element("span", {textContent: `${text}. `}));
}

function take(files) {
  if (!files.length) return;
  if (settings.querySelector("[name=model]") && !settings.querySelector("[name=model]:checked"))
    settings.querySelector("[name=model]").checked = true;
  const fresh = [...files].map(begin);
  cards.prepend(...fresh);
  document.body.classList.add("given");
  document.getElementById("examples").hidden = true;
  send(fresh);
  fresh[0].scrollIntoView({block: matchMedia("(min-width: 46rem)").matches ? "nearest" : "start"});
}

function send(waiting) {
  document.getElementById("status").replaceChildren();
  document.getElementById("how").hidden = again.hidden = false;
  cards.className = waiting.some(card => asked.get(card).fields.filter(([name]) => name === "model").length > 1) ? "abreast" : "cards";
  for (const card of waiting) line = line.then(() => describe(card));
}

chooser.addEventListener("change", () => { take(chooser.files); chooser.value = ""; });
settings.addEventListener("submit", event => event.preventDefault());

document.getElementById("examples").addEventListener("click", async event => {
  const name = event.target.closest("button")?.dataset.example;
  if (!name) return;
  const content = await (await fetch(`examples/${name}`)).blob();
  take([new File([content], name, {type: content.type})]);
});

again.addEventListener("click", () => {
  const waiting = [...cards.children].map(card => {
    stop(card);
    const fresh = begin(asked.get(card).file);
    card.replaceWith(fresh);
    return fresh;
  });
  send(waiting);
});

document.addEventListener("dragover", event => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
document.addEventListener("drop", event => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  take(event.dataTransfer.files);
});
document.addEventListener("paste", event => take(event.clipboardData.files));
