/* Photographs that are chosen, dropped, pasted or taken, and their cards. The page that includes this script defines
   captionCard(file, fields), which returns a card of captions, and drawPicture(file, fields, panel), a PNG. */

const settings = document.getElementById("settings"), chooser = document.getElementById("chooser");
const cards = document.getElementById("cards"), again = document.getElementById("again");
const COPY = "Copy as alt text";
const asked = new WeakMap();    // card -> its photograph and the fields of its request
let line = Promise.resolve();   // photographs are sent one after the other

const element = (name, properties) => Object.assign(document.createElement(name), properties);
const options = () => [...new FormData(settings)].filter(([, value]) => value);

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
    const fresh = await captionCard(file, fields);
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

/** Show a card that has come, and play its words, unless motion is to be reduced. */
function present(card) {
  share(card);
  for (const panel of panelsOf(card)) {
    const buttons = element("p", {className: "actions"}), report = fault => { panel.querySelector(".place").textContent = fault.message; announce(fault.message); };
    const save = element("button", {type: "button", textContent: "Save as a picture"});
    save.onclick = () => keep(card, panel).catch(report);
    const alternative = element("button", {type: "button", textContent: COPY});
    alternative.onclick = () => copy(panel, alternative).catch(report);
    buttons.append(save, alternative);
    panel.append(buttons);
    announce(panel.querySelector("img").alt);
  }
  if (!still.matches) play(card, 0);
}

/** Download the picture of a panel. */
async function keep(card, panel) {
  const {file, fields} = asked.get(card), address = URL.createObjectURL(await drawPicture(file, fields, panel));
  element("a", {href: address, download: `${(file.name || "pasted").replace(/\.[^.]*$/, "")}.png`}).click();
  setTimeout(URL.revokeObjectURL, 60_000, address);
}

/** Copy the caption of a panel, as alternative text for the photograph. */
async function copy(panel, button) {
  await navigator.clipboard.writeText(panel.querySelector(".caption").dataset.text);
  button.textContent = "Copied";
  announce("copied");
  setTimeout(() => { button.textContent = COPY; }, 2000);
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

const camera = document.getElementById("camera");

document.getElementById("shoot").hidden = !navigator.mediaDevices;
document.getElementById("shoot").addEventListener("click", async () => {
  const video = camera.querySelector("video"), note = camera.querySelector("p");
  note.textContent = "";
  camera.showModal();
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment"}});
  } catch (fault) {
    note.textContent = `The camera cannot be used (${fault.message}). Allow it in the settings of the browser.`;
  }
});
camera.addEventListener("close", () => {
  const video = camera.querySelector("video");
  if (camera.returnValue === "take" && video.videoWidth) {
    const canvas = element("canvas", {width: video.videoWidth, height: video.videoHeight});
    canvas.getContext("2d").drawImage(video, 0, 0);
    canvas.toBlob(content => take([new File([content], "photograph.png", {type: "image/png"})]));
  }
  video.srcObject?.getTracks().forEach(track => track.stop());
  video.srcObject = null;
});
