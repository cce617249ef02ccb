// The dashboard: who is signed in, which page is shown, and what is known now. Every page is a function of that.

import { html, render, useEffect, useErrorBoundary, useState } from "/vendor/htm-preact.js";
import { follow, get, signIn, signOut } from "/api.js";
import { Alerts } from "/alerts.js";
import { Config } from "/config.js";
import { Flow } from "/flow.js";
import { Audit, Journal, Letters } from "/lists.js";
import { Output, Source } from "/nodes.js";
import { Time } from "/parts.js";
import { Trace } from "/trace.js";

const PAGES = { flow: Flow, output: Output, source: Source, alerts: Alerts, trace: Trace, letters: Letters, journal: Journal, audit: Audit, config: Config };
const MENU = [["flow", "Flow", "f"], ["alerts", "Alerts", "w"], ["trace", "Trace", "t"], ["letters", "Letters", "l"], ["journal", "Journal", "j"], ["audit", "Audit", "a"], ["config", "Configuration", "c"]];

function placeOf(hash) {
  const [, page, ...names] = hash.split("/");
  try {
    return Object.hasOwn(PAGES, page) ? { page, names: names.map(decodeURIComponent) } : { page: "flow", names: [] };
  } catch {
    return { page: "flow", names: [] }; // what is behind a % is no character
  }
}

function usePlace() {
  const [place, go] = useState(placeOf(location.hash));
  useEffect(() => {
    const turn = () => go(placeOf(location.hash));
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  return place;
}

// `g` and a letter goes to a page; nothing of it while somebody types.
function useKeys(onHelp) {
  useEffect(() => {
    let before = "";
    const press = (event) => {
      const isTyping = /^(input|textarea|select)$/i.test(event.target.tagName) || document.querySelector("dialog[open]");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const found = before === "g" && MENU.find(([, , key]) => key === event.key);
      before = event.key;
      if (found) location.hash = `#/${found[0]}`;
      if (event.key === "?") onHelp((shown) => !shown);
      if (event.key === "Escape") onHelp(false);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

function SignIn({ onDone }) {
  const [error, fail] = useState("");
  const send = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token");
    event.target.reset();
    try {
      onDone((await signIn(token)).principal);
    } catch (problem) {
      fail(problem.message);
    }
  };
  return html`<main class="sign-in"><h1>databus</h1>
    <form onSubmit=${send}>
      <label>Your token <input name="token" type="password" required autocomplete="current-password" autofocus /></label>
      <button type="submit" class="main">Sign in</button>
      ${error && html`<p class="trouble" role="alert">${error}</p>`}
    </form>
    <p>Without a token: the link that the dashboard printed when it was started.</p></main>`;
}

const Help = () => html`<div class="help" role="status"><h2>Keys</h2><dl>
  ${MENU.map(([, title, key]) => html`<div key=${key}><dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${title}</dd></div>`)}
  <div><dt><kbd>?</kbd></dt><dd>this list</dd></div></dl></div>`;

function Menu({ page, principal, onOut }) {
  return html`<header><a class="brand" href="#/flow">databus</a>
    <nav aria-label="Pages">${MENU.map(([name, title]) => html`<a key=${name} href="#/${name}" aria-current=${name === page ? "page" : "false"}>${title}</a>`)}</nav>
    <button type="button" onClick=${onOut} title="Signed in as ${principal.name}">Sign out</button></header>`;
}

// What a part of another version tells may be what a page cannot show: then it says so, until it can.
function Shown({ page, status, ...more }) {
  const [error, retry] = useErrorBoundary();
  useEffect(() => { if (error) retry(); }, [status.at_us]);
  if (error) return html`<h1>${page}</h1><p class="trouble" role="alert">This page cannot show what it was told, perhaps by a part of another version: ${error.message}</p>`;
  return html`<${PAGES[page]} status=${status} ...${more} />`;
}

function Signed({ principal, onOut }) {
  const { page, names } = usePlace();
  const [status, put] = useState(null);
  const [isCut, cut] = useState(false);
  const [said, say] = useState("");
  const [isHelp, help] = useState(false);
  useKeys(help);
  useEffect(() => follow((told) => { put(told); cut(false); }, () => {
    cut(true);
    get("/session").then((found) => found.principal === null && onOut(), () => undefined);
  }), []);
  useEffect(() => {
    const timer = said ? setTimeout(() => say(""), 8000) : 0;
    return () => clearTimeout(timer);
  }, [said]);
  useEffect(() => {
    document.title = `${names.length ? names.join("/") : page} · databus`;
  }, [page, names.join("/")]);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <${Menu} page=${page} principal=${principal} onOut=${() => signOut().then(onOut, onOut)} />
    ${isCut && html`<p class="trouble" role="status">The dashboard does not answer${status && html`; what you see is of <${Time} us=${status.at_us} />`}.</p>`}
    ${isHelp && html`<${Help} />`}
    <p class="said" role="status">${said}</p>
    <main id="main" tabindex="-1">${status === null ? html`<p class="wait">Asking…</p>` : html`<${Shown} key=${[page, ...names].join("/")} page=${page} status=${status} names=${names} rights=${principal.rights} onDone=${say} />`}</main>`;
}

function App() {
  const [principal, put] = useState(undefined);
  const [error, fail] = useState("");
  useEffect(() => {
    const once = /^#once=([\w-]+)$/.exec(location.hash);
    if (once) history.replaceState(null, "", "/"); // it is worth nothing now, and nobody should keep it
    const asked = once ? signIn(once[1]) : get("/session");
    asked.then((found) => put(found.principal), (problem) => { fail(problem.message); put(null); });
    addEventListener("hashchange", () => location.hash.startsWith("#once=") && location.reload());
  }, []);
  if (principal === undefined) return html`<p class="wait">databus: loading…</p>`;
  if (principal === null) return html`${error && html`<p class="trouble" role="alert">${error}</p>`}<${SignIn} onDone=${put} />`;
  return html`<${Signed} principal=${principal} onOut=${() => put(null)} />`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
