const STEP = 900;    // milliseconds for which a word is shown while a caption plays
const FADE = 220;    // milliseconds from one map to the next
const BLUR = 0.55;   // width of the smoothing, in regions
const OPAQUE = 0.6;  // opacity of a colored map
const COLORS = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];  // of equal steps of a map: matplotlib's inferno
const still = matchMedia("(prefers-reduced-motion: reduce)");
const shown = new WeakMap();    // panel -> the map on it, values of its regions
const fading = new WeakMap();   // panel -> the animation frame asked for
const playing = new WeakMap();  // card -> the timer of its next word

const view = document.getElementById("view").elements;
const values = word => Float32Array.from(atob(word.dataset.map), byte => byte.charCodeAt(0) / 255);
const numbers = text => text.split(" ").map(Number);
const wordsOf = place => [...place.querySelectorAll(".caption:not(.other) .word")];
const panelsOf = card => [...card.querySelectorAll(".panel")];

/** For each of `size` pixels the weights of the `cells` that lie between two fractions of them; null beyond those. */
function kernel(size, cells, from, to) {
  return Array.from({length: size}, (_, pixel) => {
    const at = (pixel + 0.5) / size;
    if (at < from || at > to) return null;
    const place = (at - from) / (to - from) * cells - 0.5;
    const near = Float32Array.from({length: cells}, (_, cell) => Math.exp(-(((place - cell) / BLUR) ** 2) / 2));
    const sum = near.reduce((a, b) => a + b);
    return near.map(weight => weight / sum);
  });
}

const dot = (weights, others) => weights.reduce((sum, weight, place) => sum + weight * others[place], 0);

/** Red, green, blue and opacity, 0 to 255, over a region whose map has this value. */
function paint(value) {
  if (view.mode.value === "darken") return [0, 0, 0, 255 * (1 - DARKEST) * (1 - value)];
  const place = value * (COLORS.length - 1), step = Math.min(Math.floor(place), COLORS.length - 2);
  return [...COLORS[step].map((one, part) => one + (place - step) * (COLORS[step + 1][part] - one)), 255 * OPAQUE];
}

/** The value of a map at each pixel, smoothed; NaN where the model saw nothing. */
function lightOf(panel, map, width, height) {
  const [rows, columns] = numbers(panel.dataset.grid), [left, top, right, bottom] = numbers(panel.dataset.seen);
  const across = kernel(width, columns, left, right), down = kernel(height, rows, top, bottom);
  const lines = Array.from({length: rows}, (_, row) => map.subarray(row * columns, (row + 1) * columns));
  const strips = across.map(near => near && Float32Array.from(lines, line => dot(near, line)));
  const light = new Float32Array(width * height).fill(NaN);
  down.forEach((near, y) => near && strips.forEach((strip, x) => { if (strip) light[y * width + x] = dot(near, strip); }));
  return light;
}

/** Draw a map, 1 at its peak, over the photograph. */
function draw(panel, map) {
  const canvas = panel.querySelector("canvas"), {width, height} = canvas;
  const light = lightOf(panel, map, width, height);
  const peak = light.reduce((a, b) => b > a ? b : a, 1e-6);
  const low = view.stretch.checked ? light.reduce((a, b) => b < a ? b : a, peak) : 0;
  const picture = new ImageData(width, height), palette = Array.from({length: 256}, (_, level) => paint(level / 255));
  light.forEach((value, pixel) => {
    const share = value >= 0 ? ((value - low) / Math.max(peak - low, 1e-6)) ** view.contrast.value : 0;
    picture.data.set(palette[Math.round(255 * share)], 4 * pixel);
  });
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

/** Fade from the panel's map to another. */
function fade(panel, map) {
  cancelAnimationFrame(fading.get(panel));
  const before = panel.classList.contains("looking") && shown.get(panel), start = performance.now();
  const step = now => {
    const share = before && !still.matches ? Math.min(1, Math.max(0, (now - start) / FADE)) : 1;
    const mixed = share < 1 ? map.map((value, region) => share * value + (1 - share) * before[region]) : map;
    draw(panel, mixed);
    shown.set(panel, mixed);
    panel.classList.add("looking");
    if (share < 1) fading.set(panel, requestAnimationFrame(step));
  };
  step(start);
}

/** Show a word's map on a panel. */
function select(panel, word) {
  if (word.ariaSelected === "true") return;
  for (const other of panel.querySelectorAll(".word")) other.ariaSelected = String(other === word);
  panel.querySelector(".place").textContent = word.ariaLabel;
  fade(panel, values(word));
}

/** Show a word's map, and for every other model the map of the same word; of the nth, if a caption repeats it. */
function show(word) {
  const own = word.closest(".panel"), same = other => other.textContent === word.textContent;
  const before = [...word.parentElement.children].filter(same).indexOf(word);
  for (const panel of panelsOf(word.closest(".card"))) {
    const found = wordsOf(panel).filter(same);
    if (panel === own) select(panel, word);
    else if (found.length) select(panel, found[Math.min(before, found.length - 1)]);
    else {
      clear(panel);
      panel.querySelector(".place").textContent = `“${word.textContent}” is not in this caption`;
    }
  }
}

/** Show the photograph without a map. */
function clear(panel) {
  cancelAnimationFrame(fading.get(panel));
  for (const word of panel.querySelectorAll(".word")) word.ariaSelected = "false";
  panel.querySelector(".place").textContent = "";
  panel.classList.remove("looking");
}

/** Show the word that has the focus, or none, while no word is pointed at. */
function rest(card) {
  const word = card.querySelector(".word:focus");
  if (word) show(word); else panelsOf(card).forEach(clear);
}

function play(card, number) {
  const captions = panelsOf(card).map(panel => [panel, wordsOf(panel)]);
  if (number >= Math.max(...captions.map(([, words]) => words.length))) return stop(card);
  for (const [panel, words] of captions) if (words[number]) select(panel, words[number]);
  playing.set(card, setTimeout(play, STEP, card, number + 1));
  label(card, "Pause", "❚❚");
}

function stop(card) {
  if (!playing.has(card)) return;
  clearTimeout(playing.get(card));
  playing.delete(card);
  label(card, "Play", "▶");
  rest(card);
}

function label(card, action, sign) {
  const button = card.querySelector(".play");
  button.ariaLabel = button.ariaLabel.replace(/^\w+/, action);
  button.firstElementChild.textContent = sign;
}

const toggle = (card, number) => playing.has(card) ? stop(card) : play(card, number);

document.addEventListener("pointerover", event => {
  const word = event.target.closest(".word");
  if (!word || event.pointerType === "touch") return;
  stop(word.closest(".card"));
  show(word);
});

document.addEventListener("pointerout", event => {
  const caption = event.target.closest(".caption");
  if (!caption || event.pointerType === "touch" || caption.contains(event.relatedTarget)) return;
  if (!playing.has(caption.closest(".card"))) rest(caption.closest(".card"));
});

document.addEventListener("click", event => {
  const word = event.target.closest(".word"), button = event.target.closest(".play");
  if (word) { stop(word.closest(".card")); word.focus(); show(word); }
  if (button) toggle(button.closest(".card"), 0);
});

document.addEventListener("focusin", event => {
  const word = event.target.closest(".word");
  if (!word) return;
  for (const other of word.parentElement.children) other.tabIndex = other === word ? 0 : -1;
  if (!playing.has(word.closest(".card"))) show(word);
});

document.addEventListener("focusout", event => {
  const word = event.target.closest(".word");
  if (!word || word.parentElement.contains(event.relatedTarget)) return;
  if (!playing.has(word.closest(".card"))) panelsOf(word.closest(".card")).forEach(clear);
});

document.addEventListener("keydown", event => {
  const card = event.target.closest(".card"), word = event.target.closest(".word");
  if (event.key === "Escape" && card) {
    stop(card);
    panelsOf(card).forEach(clear);
  }
  if (!word || event.ctrlKey || event.altKey || event.metaKey) return;
  const words = [...word.parentElement.children], number = words.indexOf(word);
  const step = getComputedStyle(word.parentElement).direction === "rtl" ? -1 : 1;
  const goals = {ArrowLeft: number - step, ArrowRight: number + step, Home: 0, End: words.length - 1};
  if (event.key === " ") toggle(card, number);
  else if (event.key === "Enter") show(word);
  else if (event.key in goals) { stop(card); words[goals[event.key]]?.focus(); }
  else return;
  event.preventDefault();
});

/** Show the map of the first noun on each panel that comes into view. */
const opening = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) {
    if (!isIntersecting) continue;
    opening.unobserve(target);
    select(target, target.querySelector("[data-opens]"));
  }
});

/** Show the one copy of each photograph in all of its panels, with the map that they open with. */
function share(place) {
  place.querySelectorAll(".panel:has([data-opens])").forEach(panel => opening.observe(panel));
  for (const picture of place.querySelectorAll(".panel img:not([src])"))
    picture.src = picture.closest(".panels").querySelector("img").src;
}

document.getElementById("view").addEventListener("input", () => {
  for (const panel of document.querySelectorAll(".panel.looking")) draw(panel, shown.get(panel));
});

document.getElementById("view").addEventListener("submit", event => event.preventDefault());
share(document);
