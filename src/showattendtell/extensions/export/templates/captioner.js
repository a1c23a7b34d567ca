/* What `run_onnx.py` does with numpy and Pillow, for a browser: reading the size of a photograph, resizing and cropping as
   Pillow does, and beam search. `graphs` are functions from arrays to arrays, and `card` is the content of captioner.json.
   Sizes: B captions, T words, L regions, V words of the vocabulary, S the side of what the encoder sees. */

const BITS = 22;  // of the fraction of a weight, as in Pillow

/** Keys cubic convolution with a = -1/2, and a triangle. */
const FILTERS = {
  bicubic: {support: 2, weight: x => x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0},
  bilinear: {support: 1, weight: x => Math.max(0, 1 - x)},
};

/** Width and height of an image from the first bytes of its file; null for a format that the page does not read. */
export function imageSize(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (start, length) => String.fromCharCode(...bytes.subarray(start, start + length));
  try {
    if (text(1, 3) === "PNG") return [view.getUint32(16), view.getUint32(20)];
    if (text(0, 3) === "GIF") return [view.getUint16(6, true), view.getUint16(8, true)];
    if (text(0, 2) === "BM") return [view.getInt32(18, true), Math.abs(view.getInt32(22, true))];
    if (text(0, 4) === "RIFF" && text(8, 4) === "WEBP") return webpSize(view, text(12, 4));
    if (view.getUint16(0) === 0xffd8) return jpegSize(view);
    if (text(4, 4) === "ftyp") return largestExtent(view);
  } catch (fault) {
    if (!(fault instanceof RangeError)) throw fault;  // the file ends within its header
  }
  return null;
}

function webpSize(view, kind) {
  const uint24 = place => view.getUint16(place, true) + (view.getUint8(place + 2) << 16);
  if (kind === "VP8X") return [uint24(24) + 1, uint24(27) + 1];
  if (kind === "VP8 ") return [view.getUint16(26, true) & 0x3fff, view.getUint16(28, true) & 0x3fff];
  const packed = view.getUint32(21, true);  // VP8L: 14 bits of width - 1, then 14 bits of height - 1
  return [(packed & 0x3fff) + 1, ((packed >> 14) & 0x3fff) + 1];
}

/** The size of an AVIF or HEIC file: its largest box `ispe`, because images may be composed of tiles. */
function largestExtent(view) {
  let size = null;
  for (let place = 0; place + 16 <= Math.min(view.byteLength, 2 ** 20); place++) {
    if (view.getUint32(place) !== 0x69737065) continue;
    const [width, height] = [view.getUint32(place + 8), view.getUint32(place + 12)];
    if (!size || width * height > size[0] * size[1]) size = [width, height];
  }
  return size;
}

function jpegSize(view) {
  for (let place = 2; ; ) {
    while (view.getUint8(place + 1) === 0xff) place++;  // padding
    const marker = view.getUint8(place + 1);
    const isFrame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
    if (isFrame) return [view.getUint16(place + 7), view.getUint16(place + 5)];
    place += 2 + view.getUint16(place + 2);
  }
}

/** For each of `size` pixels the first pixel that it reads of `length`, and its weights in units of 2^-BITS. */
function kernels(length, size, interpolation) {
  const scale = length / size, {support, weight} = FILTERS[interpolation], stretch = Math.max(scale, 1);
  return Array.from({length: size}, (_, pixel) => {
    const center = (pixel + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support * stretch + 0.5));
    const last = Math.min(length, Math.trunc(center + support * stretch + 0.5));
    const weights = Array.from({length: last - first}, (_, n) => weight(Math.abs((n + first - center + 0.5) / stretch)));
    const sum = weights.reduce((a, b) => a + b, 0);
    return {first, weights: Float64Array.from(weights, each => Math.round(each / sum * 2 ** BITS))};
  });
}

/** Resize rows of pixels (height, width, channels) to another width. */
function resizeRows(pixels, width, height, channels, size, interpolation) {
  const resized = new Uint8ClampedArray(size * height * channels);
  if (interpolation.startsWith("nearest")) {
    for (let row = 0; row < height; row++)
      for (let x = 0; x < size; x++)
        for (let channel = 0; channel < channels; channel++)
          resized[(row * size + x) * channels + channel] =
            pixels[(row * width + Math.floor((x + 0.5) * width / size)) * channels + channel];
    return resized;
  }
  kernels(width, size, interpolation).forEach(({first, weights}, x) => {
    for (let row = 0; row < height; row++)
      for (let channel = 0; channel < channels; channel++) {
        let sum = 2 ** (BITS - 1);
        for (let n = 0; n < weights.length; n++) sum += weights[n] * pixels[(row * width + first + n) * channels + channel];
        resized[(row * size + x) * channels + channel] = Math.floor(sum / 2 ** BITS);
      }
  });
  return resized;
}

/** Exchange rows and columns of pixels (height, width, channels). */
function transpose(pixels, width, height, channels) {
  const turned = new Uint8ClampedArray(pixels.length);
  for (let row = 0; row < height; row++)
    for (let column = 0; column < width; column++)
      for (let channel = 0; channel < channels; channel++)
        turned[(column * height + row) * channels + channel] = pixels[(row * width + column) * channels + channel];
  return turned;
}

/** How many of the `rest` pixels that are cut off are on the left or top; halves are rounded to even numbers. */
export function before(rest) {
  if (rest < 0) return -Math.ceil(-rest / 2);
  const half = Math.floor(rest / 2);
  return rest % 2 && half % 2 ? half + 1 : half;
}

/** The part of a photograph that is resized, and its size after that: of very long images the center. */
export function plan(width, height, settings) {
  if (settings.crop_mode === "squash") return {left: 0, top: 0, width, height, size: [settings.resize, settings.resize]};
  const shortest = Math.min(width, height), longest = settings.longest * shortest;
  const [wide, high] = [Math.min(width, longest), Math.min(height, longest)];
  const size = [wide, high].map(side => Math.floor(settings.resize * side / shortest));
  return {left: before(width - wide), top: before(height - high), width: wide, height: high, size};
}

/** The pixels (3, S, S) that the encoder sees, of RGBA pixels of the part that `plan` returned. */
export function preprocess(rgba, width, height, size, settings) {
  const rows = resizeRows(rgba, width, height, 4, size[0], settings.interpolation);
  const columns = transpose(rows, size[0], height, 4);
  const resized = resizeRows(columns, height, size[0], 4, size[1], settings.interpolation);  // (columns, rows, 4)
  const side = settings.crop, left = before(size[0] - side), top = before(size[1] - side);
  const seen = new Uint8Array(3 * side * side);
  for (let y = 0; y < side; y++)
    for (let x = 0; x < side; x++) {
      const column = x + left, row = y + top;
      if (column < 0 || row < 0 || column >= size[0] || row >= size[1]) continue;  // black
      for (let channel = 0; channel < 3; channel++)
        seen[(channel * side + y) * side + x] = resized[(column * size[1] + row) * 4 + channel];
    }
  return seen;
}

/** Choose rows of an array {data, dims}. */
function select({data, dims}, rows) {
  const width = data.length / dims[0], chosen = new data.constructor(rows.length * width);
  rows.forEach((row, n) => chosen.set(data.subarray(row * width, (row + 1) * width), n * width));
  return {data: chosen, dims: [rows.length, ...dims.slice(1)]};
}

/** The `number` best continuations of all captions, best first: {score, parent, word}. */
function continuations(captions, logProbs, words, never, number) {
  const best = [];
  captions.forEach((caption, parent) => {
    for (let word = 0; word < words; word++) {
      const score = Math.fround(caption.logProb + logProbs[parent * words + word]);
      if (best.length === number && score <= best[number - 1].score || never.has(word)) continue;
      let place = best.length;
      while (place > 0 && best[place - 1].score < score) place--;
      best.splice(place, 0, {score, parent, word});
      if (best.length > number) best.pop();
    }
  });
  return best;
}

/** The words of a caption as a sentence. */
function join(words, {separator, replacements}) {
  const replace = (text, [pattern, other]) => text.replace(new RegExp(pattern, "gu"), other);
  return replacements.reduce(replace, words.join(separator));
}

/** log p of a word of a row of log p (V,), calibrated as `run_onnx.py` does; as it is without a calibration. */
function calibrated(logProbs, word, calibration) {
  if (!calibration) return logProbs[word];
  const [a, b, c] = calibration.curve;
  const largest = values => values.reduce((one, other) => Math.max(one, other), -Infinity);
  const best = largest(logProbs), top = logProbs.indexOf(best), others = logProbs.slice();
  others[top] = -Infinity;
  const rest = others.reduce((sum, each) => sum + Math.exp(each), 0);
  const logOdds = a * best - b * Math.log(rest) + c;
  const q = 1 / (1 + Math.exp(-logOdds)), share = 1 / (1 + Math.exp(logOdds));
  const factor = Math.min(share / rest, q / Math.exp(largest(others)));
  const left = Math.max(0, share - factor * rest) / logProbs.length;
  return Math.log((word === top ? q : factor * Math.exp(logProbs[word])) + left);
}

/**
 * Caption an image by beam search for the likeliest caption with `beam` open captions.
 *
 * Returns {text, words, logProb, confidence, not_sure, steps}; a step has {word, confidence, attention (L), gate}.
 */
export async function caption(graphs, card, pixels, beam) {
  const side = card.preprocessing.crop, {start, eos} = card.special, never = new Set(card.suppressed_tokens);
  const [regions] = await graphs.encode({data: pixels, dims: [1, 3, side, side]});
  let [keys, hidden, cell] = await graphs.begin(regions);
  const [, count] = regions.dims, vocabulary = card.vocabulary.length;
  let open = [{steps: [], logProb: 0}], words = [start], parents = [0], ended = null;
  const integers = values => ({data: BigInt64Array.from(values, BigInt), dims: [values.length]});
  for (let step = 0; step < card.max_length; step++) {
    const images = integers(words.map(() => 0)), last = integers(words);
    const outputs = await graphs.step(regions, keys, images, select(hidden, parents), select(cell, parents), last);
    const [logProbs, attention, gates] = outputs.map(({data}) => data);
    [, , , hidden, cell] = outputs;
    const append = ({score, parent, word}) => {
      const row = logProbs.subarray(parent * vocabulary, (parent + 1) * vocabulary);
      const added = {
        word, confidence: Math.exp(calibrated(row, word, card.calibration)), gate: gates[parent],
        attention: attention.slice(parent * count, (parent + 1) * count),
      };
      return {steps: [...open[parent].steps, added], logProb: score};
    };
    const continued = continuations(open, logProbs, vocabulary, never, 2 * beam);
    for (const one of continued.slice(0, beam))
      if (one.word === eos && one.score > (ended?.logProb ?? -Infinity)) ended = append(one);
    const kept = continued.filter(one => one.word !== eos).slice(0, beam)
      .filter(one => one.score > (ended?.logProb ?? -Infinity));
    if (!kept.length) break;
    open = kept.map(append);
    parents = kept.map(one => one.parent);
    words = kept.map(one => one.word);
  }
  const best = ended ?? open[0], logs = best.steps.map(step => Math.log(step.confidence));
  const [unlikeness] = graphs.unlikeness ? await graphs.unlikeness(regions) : [null];
  const said = best.steps.filter(step => step.word !== eos).map(step => card.vocabulary[step.word]);
  return {
    text: join(said, card.detokenizer),
    words: said,
    logProb: best.logProb,
    confidence: Math.exp(logs.reduce((a, b) => a + b, 0) / Math.max(1, logs.length)),
    not_sure: Boolean(unlikeness && unlikeness.data[0] > card.calibration.threshold),
    steps: best.steps,
  };
}
