const DARKEST = {{ darkest }};
{% include "page.js" %}
{% include "upload.js" %}

const TRIES = 30;    // attempts of a request while the server has too many connections
const PAUSE = 2000;  // milliseconds between them

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
    if (answer.status !== 503 || !tries) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
    await new Promise(done => setTimeout(done, PAUSE));
  }
}

/** Request the captions of a photograph as a card. */
async function captionCard(file, fields) {
  const held = element("template", {innerHTML: await (await ask("cards", file, fields)).text()});
  return held.content.querySelector(".card");
}

/** Request the picture of a panel. */
async function drawPicture(file, fields, panel) {
  const others = fields.filter(([name]) => name !== "model");
  return (await ask("api/picture", file, [...others, ["model", panel.ariaLabel]])).blob();
}
