/* Runs the graphs away from the page, so that it stays responsive. */

import {caption, imageSize, plan, preprocess} from "./captioner.js";

const MEGAPIXELS = 64;  // more would take gigabytes of memory
const TYPES = {BigInt64Array: "int64", Float32Array: "float32", Uint8Array: "uint8"};

const models = new Map();  // name -> its card and graphs
let ort;                   // onnxruntime-web

/** Fetch a file, decompressed if it is compressed, and report the bytes as they come. */
async function read(address, report) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address} is missing; upload the whole folder`);
  const counter = new TransformStream({transform(chunk, out) { report(chunk.length); out.enqueue(chunk); }});
  const content = new Uint8Array(await new Response(answer.body.pipeThrough(counter)).arrayBuffer());
  if (content[0] !== 0x1f || content[1] !== 0x8b) return content;  // the server had it decompressed
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function open({name, folder, graphs: names}, gpu, report) {
  const card = JSON.parse(new TextDecoder().decode(await read(`${folder}/captioner.json`, report)));
  const graphs = {};
  for (const graph of names) {
    // each step of the decoder is small: on a GPU it would wait for the transfers
    const executionProviders = gpu && graph === "encode" ? ["webgpu", "wasm"] : ["wasm"];
    const session = await ort.InferenceSession.create(await read(`${folder}/${graph}.onnx.gz`, report), {executionProviders});
    graphs[graph] = async (...arrays) => {
      const tensors = arrays.map(({data, dims}) => new ort.Tensor(TYPES[data.constructor.name], data, dims));
      const given = await session.run(Object.fromEntries(session.inputNames.map((input, n) => [input, tensors[n]])));
      return session.outputNames.map(output => ({data: given[output].data, dims: given[output].dims}));
    };
  }
  models.set(name, {card, graphs});
}

/** Decode a photograph of at most `MEGAPIXELS`, upright and without the color profile, as Pillow does. */
async function decode(file) {
  const size = imageSize(new Uint8Array(await file.arrayBuffer()));
  const formats = "a JPEG, PNG, WebP, GIF, BMP or AVIF file";
  if (!file.size) throw new Error(`is empty; choose ${formats}`);
  if (!size) throw new Error(`is not ${formats}, or is damaged; save it as JPEG or PNG`);
  const [width, height] = size;
  if (width * height > MEGAPIXELS * 1e6)
    throw new Error(`has ${width} x ${height} pixels; choose a copy of at most ${MEGAPIXELS} million pixels`);
  const settings = {imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none"};
  return createImageBitmap(file, settings).catch(() => {
    throw new Error("is damaged, or in a format that this browser cannot decode, such as HEIC; save it as JPEG");
  });
}

/** The pixels that an encoder with this preprocessing sees; transparent ones are white. */
function see(bitmap, settings) {
  const part = plan(bitmap.width, bitmap.height, settings);
  const canvas = new OffscreenCanvas(part.width, part.height);
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.fillStyle = "white";
  context.fillRect(0, 0, part.width, part.height);
  context.drawImage(bitmap, -part.left, -part.top);
  const {data} = context.getImageData(0, 0, part.width, part.height);
  return preprocess(data, part.width, part.height, part.size, settings);
}

async function describe({file, chosen, beam}) {
  const bitmap = await decode(file), outputs = [];
  for (const name of chosen) {
    const {card, graphs} = models.get(name);
    outputs.push({name, ...await caption(graphs, card, see(bitmap, card.preprocessing), beam)});
  }
  return {width: bitmap.width, height: bitmap.height, outputs};
}

/** Load onnxruntime-web and the models; return whether encoders run on a GPU. */
async function start(opened, report) {
  const gpu = {{ webgpu | tojson }} && Boolean(await navigator.gpu?.requestAdapter());
  const [script, program] = gpu ? ["ort.webgpu.bundle.min.mjs", "ort-wasm-simd-threaded.asyncify.wasm"]
    : ["ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"];
  ort = await import(`./onnxruntime/${script}`);
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  ort.env.wasm.wasmBinary = await read(`./onnxruntime/${program}.gz`, report);
  for (const model of opened) await open(model, gpu, report);
  return gpu;
}

onmessage = async ({data: {number, models: opened, ...request}}) => {
  try {
    const report = bytes => postMessage({number, bytes});
    postMessage({number, result: await (opened ? start(opened, report) : describe(request))});
  } catch (fault) {
    postMessage({number, error: fault.message});
  }
};
