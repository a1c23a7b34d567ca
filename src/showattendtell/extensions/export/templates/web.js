const DARKEST = {{ darkest }};
const UNSURE = {{ not_sure | tojson }};
const MODELS = {{ loaded | tojson }};  // name, folder, graphs, grid and preprocessing of each
const BYTES = {{ bytes }};             // of all models
const PATIENCE = 60_000;               // milliseconds that a photograph may take
{% include "page.js" %}
{% include "upload.js" %}

const LONGEST = 640;                   // side of the photograph on a card, in pixels
const PLACES = ["at the top left", "at the top", "at the top right", "at the left", "in the middle", "at the right",
  "at the bottom left", "at the bottom", "at the bottom right"];
const results = new WeakMap();         // panel -> the output of its model, and the photograph on it
let worker, opened, calls = 0;

/** Start the worker, or another in its place, and load the models. */
function start() {
  worker?.terminate();
  worker = new Worker("worker.js", {type: "module"});
  let loaded = 0;
  const note = document.getElementById("loading");
  opened = call({models: MODELS}, bytes => {
    loaded += bytes;
    note.textContent = `loading, ${Math.min(99, Math.round(100 * loaded / BYTES))} % of ${(BYTES / 1e6).toFixed(1)} MB`;
  });
  opened.then(gpu => { note.textContent = gpu ? "ready, on the GPU" : "ready"; }, fault => { note.textContent = fault.message; note.className = "fault"; });
}

/** Send a request to the worker and return its result. */
function call(request, report = () => {}) {
  const number = calls++, target = worker;
  return new Promise((resolve, reject) => {
    const hear = ({data}) => {
      if (data.number !== number) return;
      if (data.bytes) return report(data.bytes);
      target.removeEventListener("message", hear);
      data.error ? reject(new Error(data.error)) : resolve(data.result);
    };
    target.addEventListener("message", hear);
    target.addEventListener("error", event => reject(new Error(event.message || "the captioner cannot be started in this browser")));
    target.postMessage({number, ...request});
  });
}

/** Caption a photograph; a file that takes too long is given up, and the worker is started again. */
async function ask(file, fields) {
  await opened;
  const names = fields.filter(([name]) => name === "model").map(([, value]) => value), get = Object.fromEntries(fields);
  const chosen = names.length ? names : MODELS.map(model => model.name);
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      start();
      reject(new Error(`takes longer than ${PATIENCE / 1000} seconds; choose another photograph`));
    }, PATIENCE * chosen.length);
  });
  const request = {file, chosen, beam: Number(get.beam_size ?? 3)};
  return Promise.race([call(request), late]).finally(() => clearTimeout(timer));
}

/** Return where a map (rows, columns) has its peak, in words. */
function findPlace(map, [rows, columns], [left, top, right, bottom]) {
  const peak = map.indexOf(Math.max(...map)), mean = map.reduce((a, b) => a + b) / map.length;
  if (map[peak] < {{ even }} * mean) return "everywhere alike";
  const x = left + (peak % columns + 0.5) / columns * (right - left);
  const y = top + (Math.floor(peak / columns) + 0.5) / rows * (bottom - top);
  return `mostly ${PLACES[3 * Math.floor(3 * y) + Math.floor(3 * x)]}`;
}

function makeWord(step, text, grid, seen, gated, first) {
  const map = step.attention, peak = Math.max(...map);
  const levels = String.fromCharCode(...map.map(value => Math.round(value / peak * 255)));
  const beta = gated ? `, beta ${step.gate.toFixed(2)}` : "";
  const word = element("span", {
    className: "word", role: "option", ariaSelected: "false", tabIndex: first ? 0 : -1, textContent: text,
    ariaLabel: `${text}: ${findPlace(map, grid, seen)}${beta}, confidence ${step.confidence.toFixed(2)}`,
  });
  word.style.setProperty("--confidence", step.confidence.toFixed(3));
  if (gated) word.style.setProperty("--gate", step.gate.toFixed(2));
  word.dataset.map = btoa(levels);
  return word;
}

/** Mark the words that have no space before them in the caption. */
function joinWords(words, text) {
  let end = 0;
  for (const word of words) {
    const start = text.indexOf(word.textContent, end);
    word.classList.toggle("joined", start > 0 && text[start - 1] !== " ");
    end = Math.max(end, start + word.textContent.length);
  }
}

function makePanel(output, photograph, name, several) {
  const model = MODELS.find(one => one.name === output.name), [wide, high] = [photograph.width, photograph.height];
  const seen = seenPart(wide, high, model.preprocessing);
  const panel = element("section", {className: "panel", role: "group", ariaLabel: output.name});
  Object.assign(panel.dataset, {grid: model.grid.join(" "), seen: seen.map(part => part.toFixed(4)).join(" ")});
  if (several) panel.append(element("h3", {textContent: output.name}));
  const frame = element("div", {className: "frame"}), stage = element("div", {className: "stage"});
  frame.style.setProperty("--ratio", (wide / high).toFixed(4));
  const marked = `${output.text}${output.not_sure ? " (not sure)" : ""}`, alt = `The photograph ${name}, captioned: ${marked}`;
  const map = element("canvas", {width: Math.max(1, wide >> 1), height: Math.max(1, high >> 1), ariaHidden: "true"});
  frame.append(element("img", {src: photograph.address, width: wide, height: high, alt}), map);
  stage.append(frame);
  const gated = output.steps.some(step => step.gate < {{ ungated }});
  const words = output.words.map((word, n) => makeWord(output.steps[n], word, model.grid, seen, gated, n === 0));
  const line = element("div", {className: "caption", dir: "auto", role: "listbox", ariaOrientation: "horizontal",
    ariaLabel: `Caption of ${several ? output.name : name}`});
  line.append(...words);
  line.dataset.text = marked;
  joinWords(words, output.text);
  const confidence = element("p", {className: "confidence", textContent: `confidence ${output.confidence.toFixed(2)}`});
  if (output.not_sure) confidence.append(" · ", element("strong", {textContent: "not sure"}), `: ${UNSURE}`);
  panel.append(stage, line, confidence, element("p", {className: "place", ariaHidden: "true"}));
  results.set(panel, {output, photograph});
  return panel;
}

/** The central part of a photograph that a model sees, as fractions: left, top, right, bottom. */
function seenPart(width, height, {crop, crop_mode: mode, resize}) {
  const shortest = Math.min(width, height);
  const [x, y] = [width, height].map(side => crop / resize * (mode === "squash" ? 1 : shortest / side));
  return [(1 - x) / 2, (1 - y) / 2, (1 + x) / 2, (1 + y) / 2];
}

/** Return a small copy of a photograph: {address, width, height}. */
async function shrink(file) {
  const bitmap = await createImageBitmap(file), scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map(side => Math.max(1, Math.round(scale * side)));
  const canvas = element("canvas", {width, height});
  canvas.getContext("2d").drawImage(bitmap, 0, 0, width, height);
  return {address: canvas.toDataURL("image/webp", 0.8), width, height};
}

async function captionCard(file, fields) {
  const name = file.name || "pasted";
  const {outputs} = await ask(file, fields).catch(fault => { throw new Error(`${name} ${fault.message}`); });
  const photograph = await shrink(file), card = element("article", {className: "card", ariaLabel: name});
  const header = element("header"), panels = element("div", {className: "panels"});
  const button = element("button", {className: "play", type: "button", ariaLabel: `Play the words of ${name}`});
  button.append(element("span", {ariaHidden: "true", textContent: "▶"}));
  header.append(element("h2", {textContent: name}), button);
  panels.append(...outputs.map(output => makePanel(output, photograph, name, outputs.length > 1)));
  card.append(header, panels);
  return card;
}

/** Draw the photograph, and its map for each word, as one picture. */
async function drawPicture(file, fields, panel) {
  const {output, photograph} = results.get(panel), words = wordsOf(panel), image = panel.querySelector("img");
  const scale = Math.min(300 / photograph.width, 900 / photograph.height), wide = Math.round(scale * photograph.width);
  const high = Math.round(scale * photograph.height), columns = Math.min(4, words.length + 1), gap = 12, line = 26;
  const rows = Math.ceil((words.length + 1) / columns);
  const canvas = element("canvas", {width: columns * (wide + gap) + gap, height: rows * (high + line + gap) + gap});
  const context = canvas.getContext("2d"), selected = panel.querySelector("[aria-selected=true]");
  Object.assign(context, {fillStyle: "white", font: "17px system-ui, sans-serif", textAlign: "center"});
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "black";
  ["", ...words].forEach((word, n) => {
    const x = gap + n % columns * (wide + gap), y = gap + Math.floor(n / columns) * (high + line + gap);
    context.drawImage(image, x, y + line, wide, high);
    context.fillText(word ? word.textContent : `confidence ${output.confidence.toFixed(2)}${output.not_sure ? ", not sure" : ""}`, x + wide / 2, y + 18, wide);
    if (!word) return;
    draw(panel, values(word));
    context.drawImage(panel.querySelector("canvas"), x, y + line, wide, high);
  });
  if (selected) draw(panel, values(selected));
  return new Promise(done => canvas.toBlob(done));
}

start();
if ("serviceWorker" in navigator)
  navigator.serviceWorker.register("service_worker.js").catch(fault => console.warn(`offline use is off: ${fault.message}`));
