"""Pages of a headless Chromium, told what to do over its DevTools. What a page logs and asks for is kept."""

import asyncio
import base64
import itertools
import json
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

WAIT_S = 45.0


class Browser:
    """A connection to Chromium. `page()` opens one more; each has a profile of its own: no cookie is another's."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._socket: ClientWebSocketResponse | None = None
        self._session: ClientSession | None = None
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _connect(self) -> None:
        self._session = ClientSession()
        self._socket = await self._session.ws_connect(self._url, max_msg_size=1 << 28)
        self._reading = asyncio.ensure_future(self._read())

    async def _close(self) -> None:
        assert self._session is not None
        self._reading.cancel()
        await self._session.close()

    async def _read(self) -> None:
        assert self._socket is not None
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            told = json.loads(message.data)
            if "id" in told and (waiting := self._answers.pop(told["id"], None)) is not None:
                waiting.set_result(told)
            elif page := self._pages.get(told.get("sessionId", "")):
                page.take(told["method"], told["params"])

    async def _send(self, method: str, session: str | None = None, **params: Any) -> Any:
        assert self._socket is not None
        number = next(self._numbers)
        waiting = self._answers[number] = self._loop.create_future()
        told = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        await self._socket.send_json(told)
        answer = await asyncio.wait_for(waiting, WAIT_S)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        return self.run(self._send(method, session, **params))

    def page(self, width: int = 1280, *, dark: bool = False) -> "Page":
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, context)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.send("Emulation.setEmulatedMedia", features=scheme)
        return page


class Page:
    """One page."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser = browser
        self._session = session
        self._context = context
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.wait_s = WAIT_S

    def take(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:1000])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(params["args"])[:1000])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, self._session, **params)

    def close(self) -> None:
        """With its profile: pages that nobody looks at any more would go on."""
        self._browser.send("Target.disposeBrowserContext", browserContextId=self._context)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def js(self, expression: str) -> Any:
        """The value of an expression, of a promise what it becomes."""
        told = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The same, once it is something."""
        deadline = time.monotonic() + self.wait_s
        while not (found := self.js(expression)):
            assert time.monotonic() < deadline, f"{expression} did not come true; {self.errors}; {self.text()[:2000]}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        return str(self.js("document.body?.innerText"))

    def wait_for(self, text: str) -> None:
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def click(self, selector: str, text: str = "") -> None:
        """Click what a selector finds, the first that has this text."""
        among = f"[...document.querySelectorAll({json.dumps(selector)})]"
        found = f"{among}.find((e) => e.textContent.includes({json.dumps(text)}))"
        self.wait(f"{found} !== undefined")
        self.js(f"{found}.click()")

    def type(self, selector: str, text: str) -> None:
        """In the place of what stands there."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        self.js(f"((field) => {{ field.focus(); field.select(); }})(document.querySelector({json.dumps(selector)}))")
        self.send("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        for key in keys:
            code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, ord(key[0]))
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def shot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def strangers(self, url: str) -> list[str]:
        """What it asked of anybody else."""
        return [each for each in self.asked if urlsplit(each).netloc not in (urlsplit(url).netloc, "")]
