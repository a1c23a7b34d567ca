/* Keeps the files of the page, so that it works offline; and adds the headers with which a browser runs the graphs on
   several threads, which a plain file server does not send. */

const KEPT = "captioner-{{ version }}";
const FILES = {{ files | tojson }};
const HEADERS = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"};

addEventListener("install", event => {
  event.waitUntil(caches.open(KEPT).then(kept => kept.addAll(FILES)).then(() => skipWaiting()));
});

addEventListener("activate", event => {
  const outdated = names => names.filter(name => name.startsWith("captioner-") && name !== KEPT);
  event.waitUntil(caches.keys().then(names => Promise.all(outdated(names).map(name => caches.delete(name)))).then(() => clients.claim()));
});

addEventListener("fetch", event => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== location.origin) return;
  event.respondWith(answer(event.request));
});

async function answer(request) {
  const found = await caches.match(request, {ignoreSearch: true}) ?? await fetch(request);
  const headers = new Headers(found.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(found.body, {status: found.status, statusText: found.statusText, headers});
}
