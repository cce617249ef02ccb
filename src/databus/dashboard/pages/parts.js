// Pieces that several pages are made of.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import { get } from "/api.js";
import { lookOf, time } from "/words.js";

export function State({ state }) {
  const { look, sign, word } = lookOf(state);
  return html`<span class="state ${look}"><span aria-hidden="true">${sign}</span> ${word}</span>`;
}

export function Time({ us }) {
  const { text, utc } = time(us);
  return html`<time datetime=${utc} title=${utc && `${utc} (UTC)`}>${text}</time>`;
}

export const Trouble = ({ text }) => (text ? html`<p class="trouble" role="alert">${text}</p>` : null);

// Rows with named columns: `columns` is [[title, row => cell, isNumber]]. id: what a row is about, where rows come and go
// beside one in which somebody is about to do something.
export function Table({ label, columns, rows, empty, id }) {
  if (rows.length === 0) return html`<p class="wait">${empty}</p>`;
  return html`<div class="table" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption>${label}</caption>
      <thead><tr>${columns.map(([title, , isNumber]) => html`<th scope="col" class=${isNumber ? "number" : ""}>${title}</th>`)}</tr></thead>
      <tbody>${rows.map((row, at) => html`<tr key=${id ? id(row) : at}>${columns.map(([, cell, isNumber]) => html`<td class=${isNumber ? "number" : ""}>${cell(row)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

const LIST_MS_MAX = 30_000;

// What an endpoint answers, asked again every `every` ms while the page is seen, and when `version` is another: [answer, error].
// A value of `query` may be a function, which is called each time.
export function useAnswer(path, query, every = 0, version = "") {
  const of = JSON.stringify([path, query]);
  const [found, put] = useState([null, "", of]);
  const latest = useRef(0);
  useEffect(() => {
    const mine = ++latest.current;
    let isAsking = false; // what is slow is not asked again meanwhile: browsers have six connections a host
    const ask = () => {
      if (isAsking || (document.hidden && every)) return;
      isAsking = true;
      const now = Object.fromEntries(Object.entries(query).map(([name, value]) => [name, typeof value === "function" ? value() : value]));
      get(path, now, every ? LIST_MS_MAX : undefined).then(
        (answer) => mine === latest.current && put([answer, "", of]),
        (error) => mine === latest.current && put(([before, , whose]) => [whose === of ? before : null, error.message, of]),
      ).finally(() => { isAsking = false; });
    };
    ask();
    const timer = every ? setInterval(ask, every) : 0;
    return () => clearInterval(timer);
  }, [of, version, every]);
  return found[2] === of ? found : [null, ""]; // never the answer about something else
}

const PAGE = 100;

// Tables, of which the API gives some at a time: [answer, error, what chooses those].
export function useTables(path, every) {
  const [{ like, offset }, choose] = useState({ like: "", offset: 0 });
  const [found, error] = useAnswer(path, { like, offset, limit: PAGE }, every);
  const count = found ? found.count : null;
  const turn = (title, by, isOver) => html`<button type="button" disabled=${isOver} onClick=${() => choose({ like, offset: offset + by })}>${title}</button>`;
  const chooser = html`<div class="actions" role="group" aria-label="Which tables">
    <label>Name has <input type="search" value=${like} autocomplete="off" onInput=${(event) => choose({ like: event.target.value, offset: 0 })} /></label>
    ${turn("Previous", -PAGE, offset === 0)}${turn("Next", PAGE, count === null || offset + PAGE >= count)}
    <span role="status">${count === null ? "" : count === 0 ? "no table" : `${offset + 1} to ${Math.min(offset + PAGE, count)} of ${count} tables`}</span>
  </div>`;
  return [found, error, chooser];
}

const OVER = ["stopped", "ended"];

// Parts that do not answer, and since when their numbers are old; pipelines whose relay does not.
export function Unseen({ parts }) {
  const silent = parts.filter((each) => each.unseen);
  const cut = parts.filter((each) => !each.unseen && each.relay_error && !OVER.includes(each.state));
  return html`${silent.map((each) => html`<p class="trouble" role="status" key=${each.name}>
    ${each.name} does not answer${each.seen_us ? html`; its numbers are of <${Time} us=${each.seen_us} />` : null}: ${each.unseen}
  </p>`)}${cut.map((each) => html`<p class="trouble" role="status" key=${`${each.name} relay`}>
    The relay of ${each.name} does not answer it; what is shown of its sources is of before: ${each.relay_error}
  </p>`)}`;
}

export const Unanswered = ({ found }) =>
  Object.entries(found || {}).map(([name, why]) => html`<p class="trouble" key=${name}>${name} does not answer: ${why}</p>`);
