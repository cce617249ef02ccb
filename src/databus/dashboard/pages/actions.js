// Buttons that change something, and the dialog that asks why. What a person saw goes along: `if_seen`.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import { act, newKey } from "/api.js";

export function Actions({ list, rights, state, onDone }) {
  const [chosen, choose] = useState(null);
  const allowed = list.filter((each) => rights.includes(each.right || "control"));
  if (allowed.length === 0) return null;
  return html`<div class="actions" role="group" aria-label="Actions">
    ${allowed.map((each) => html`<button type="button" key=${each.verb} onClick=${() => choose({ ...each, seen: state, key: newKey() })}>${each.title}</button>`)}
    ${chosen && html`<${Dialog} action=${chosen} onEnd=${(said) => { choose(null); if (said) onDone(said); }} />`}
  </div>`;
}

// What came of it, where it is a number: letters; and which outputs, where it was more than the one that was asked for.
function resultOf(result) {
  const known = ["written", "refused", "dropped"].filter((name) => result && typeof result[name] === "number");
  if (known.length) return ` (${known.map((name) => `${result[name]} ${name}`).join(", ")})`;
  const outputs = (result && Array.isArray(result.outputs) && result.outputs) || [];
  return outputs.length > 1 ? ` (${outputs.join(", ")}, which share a lane)` : "";
}

function Dialog({ action, onEnd }) {
  const box = useRef(null);
  const [error, fail] = useState("");
  const [isBusy, work] = useState(false);
  useEffect(() => box.current.showModal(), []);
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const body = { reason: form.get("reason"), ...action.also };
    if (action.seen) body.if_seen = action.seen;
    for (const { name, type } of action.fields || []) {
      if (form.get(name) !== "") body[name] = type === "number" ? Number(form.get(name)) : form.get(name);
    }
    if (action.confirm) body.confirm = form.get("confirm");
    work(true);
    try {
      const done = await act(action.path, body, action.key, action.method);
      onEnd(`${action.title}: ${done.state}${resultOf(done.result)}`);
    } catch (problem) {
      fail(problem.message);
      work(false);
      // What comes next is another wish; but what was not answered may have been done, and is then not done again.
      if (problem.status !== 0) action.key = newKey();
    }
  };
  return html`<dialog ref=${box} onClose=${() => onEnd("")} aria-labelledby="asked">
    <form onSubmit=${send}>
      <h2 id="asked">${action.title} ${action.name}?</h2>
      <p>${action.says}</p>
      ${action.seen && html`<p>It is <b>${action.seen}</b>; if it is not any more, nothing is done.</p>`}
      ${(action.fields || []).map(({ name, label, ...more }) => html`<label key=${name}>${label} <input name=${name} required autocomplete="off" ...${more} /></label>`)}
      <label>Reason <input name="reason" required maxlength="1000" autocomplete="off" autofocus /></label>
      ${action.confirm && html`<label>Type <b>${action.confirm}</b> to confirm <input name="confirm" required autocomplete="off" spellcheck=${false} /></label>`}
      ${error && html`<p class="trouble" role="alert">${error}</p>`}
      <div class="actions">
        <button type="submit" class="main" disabled=${isBusy}>${action.title}</button>
        <button type="button" onClick=${() => box.current.close()}>Cancel</button>
      </div>
    </form>
  </dialog>`;
}
