"""Reads from a running server its engine, K, load, and accepted tokens.

SGLang answers /server_info, llama-server /props, vLLM and TensorRT-LLM /version; the
last signs its models. Names in /metrics differ by a prefix; SGLang and TensorRT-LLM
count steps in their replies instead.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.records import Amount, Count, Facts
from evict_profile.served.run import SPECULATION_FLAGS, STEP_FLAGS, Deployment

READ_TIMEOUT_S = 120.0
FIX_URL = "fix the URL, as http://localhost:8000"
MAX_QUOTED = 300

MAX_PORT = 65_535
RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
DRAFTS, ACCEPTED = "spec_decode_num_drafts", "spec_decode_num_accepted_tokens"
DRAFTED = "spec_decode_num_draft_tokens"
ACTIVE = "spec_num_draft_tokens"
"""SGLang's gauge of the tokens that a step verifies, root included: it may change."""
FLAGS = (
    "tp_size", *STEP_FLAGS, "total_slots", "model_path", *SPECULATION_FLAGS,
)  # fmt: skip
"""Facts that change step time; a drafting engine sets `SPECULATION_FLAGS` itself."""

_SAMPLE = re.compile(
    r"^(?:(?:vllm|sglang|llamacpp):)?([\w:]+)(\{[^}]*\})? "
    r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)$", re.MULTILINE,
)  # fmt: skip


class ConnectionLost(ConfigError):
    """A connection broke; a second try may succeed."""


class ServerInfo(Struct, frozen=True):
    """What a server states about itself.

    Attributes:
        drafts: K, or the largest of several; 0 for plain decoding.
        adaptive: the server changes K from step to step, and does not count drafts.
    """

    url: str
    engine: str
    version: str
    model: str
    drafts: Amount
    levels: Amount
    topk: Count
    flags: Facts
    adaptive: bool = False

    @property
    def speculation(self) -> str:
        if self.adaptive:
            return f"K varies, at most {self.drafts}"
        return f"K = {self.drafts}" if self.drafts else "plain decoding"

    @property
    def deployment(self) -> Deployment:
        """The facts that servers share if they differ only in their drafts."""
        drafting, url = {"tp_size", *SPECULATION_FLAGS}, httpx.URL(self.url)
        return Deployment(
            model=self.model,
            engine=self.engine,
            version=self.version,
            tp=self.flags.get("tp_size"),
            host="localhost" if is_local(url) else url.host,
            flags={k: v for k, v in self.flags.items() if k not in drafting},
        )


def is_local(url: httpx.URL) -> bool:
    return url.host in ("localhost", "::1") or url.host.startswith("127.")


class Server:
    def __init__(self, url: str, key: str = "") -> None:
        try:
            whole = httpx.URL(re.sub(r"(/v1)?/*$", "", url))
            if (whole.port or 0) > MAX_PORT:
                raise httpx.InvalidURL("port")
        except httpx.InvalidURL as error:
            raise ConfigError(f"the server's URL is none; {FIX_URL}") from error
        # A user and a password of the URL are sent, and neither shown nor written.
        self.url = str(whole.copy_with(userinfo=b"", query=None, fragment=None))
        # llama-server may drop the next request of a connection that had a stream.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # A transport of its own keeps what is local away from HTTP_PROXY.
        local = httpx.AsyncHTTPTransport(limits=limits) if is_local(whole) else None
        self.http = httpx.AsyncClient(
            base_url=whole,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=10.0),
            limits=limits,
            transport=local,
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn errors of HTTP into one sentence."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise ConfigError(f"{self.url}: {_refusal(error.response)}") from error
        except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
            reason = f"no server answers; start it, or {FIX_URL}"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                reason = "its certificate is not trusted; set SSL_CERT_FILE to its CA's"
            raise ConfigError(f"{self.url}: {reason}") from error
        except httpx.TimeoutException as error:
            raise ConfigError(
                f"{self.url}: no answer for {READ_TIMEOUT_S:.0f} s; look at the "
                "server's log"
            ) from error
        except (httpx.RequestError, ValueError) as error:
            raise ConnectionLost(
                f"{self.url}: the connection broke ({error or type(error).__name__}); "
                "look at the server's log, and run the same command again"
            ) from error

    async def _models(self) -> list[Facts]:
        with self.answering():
            reply = (await self.http.get("/v1/models")).raise_for_status()
        data = _facts(reply).get("data")
        found = data if isinstance(data, list) else []
        return [each for each in found if isinstance(each, dict) and "id" in each]

    async def model(self, asked: str | None) -> str:
        names = [str(each["id"]) for each in await self._models()]
        if asked in names or (len(names) == 1 and not asked):
            return asked or names[0]
        raise ConfigError(
            f"{self.url}: /v1/models lists {', '.join(names) or 'no model'}; name one "
            f"of those with --model, or {FIX_URL}"
        )

    async def info(self, asked: str | None, drafts: int | None) -> ServerInfo:
        """Read the facts of the server; `drafts` is K if it does not state it."""
        model = await self.model(asked)
        engine, version, stated = await self.engine()
        known = await self.metrics()
        how = _speculation(known, stated)
        if how is None and drafts is None:
            raise ConfigError(
                f"{self.url}: does not state how many tokens it drafts; give --drafts "
                "K, 0 for plain decoding"
            )
        if how and drafts not in (None, how[0]):
            raise ConfigError(
                f"{self.url}: states K = {how[0]}, and --drafts {drafts} was given; "
                "leave --drafts out, or start the server with that K"
            )
        flags = {name: stated[name] for name in FLAGS if name in stated}
        k = drafts or 0
        adaptive = stated.get("speculative_adaptive") or "evict_profile:width" in known
        shape = how or (k, k, 1)
        return ServerInfo(
            self.url, engine, version, model, *shape, flags, bool(adaptive)
        )

    async def metrics(self) -> dict[str, float]:
        reply = await self._get("/metrics")
        return metrics_of(reply.text if reply else "")

    async def running(self) -> int:
        """Requests that run now; 0 if the server does not state it."""
        known = await self.metrics()
        return int(max(known.get(name, 0.0) for name in RUNNING))

    async def engine(self) -> tuple[str, str, Facts]:
        """Its name, its version, and what it states of itself."""
        stated = _facts(await self._get("/server_info"))
        if "speculative_algorithm" in stated:  # vLLM's, in its mode for developers, not
            return "sglang", str(stated.get("version", "")), stated
        if stated := _facts(await self._get("/props")):
            return "llama.cpp", str(stated.get("build_info", "")), stated
        version = _facts(await self._get("/version")).get("version")
        owners = {each.get("owned_by") for each in await self._models()}
        name = "trtllm" if owners == {"tensorrt_llm"} else "vllm"
        return (name, str(version), {}) if version else ("?", "", {})

    async def _get(self, path: str) -> httpx.Response | None:
        with self.answering():
            reply = await self.http.get(path)
        return reply if reply.is_success else None


def metrics_of(text: str) -> dict[str, float]:
    """Values of /metrics: no prefixes, summed over all labels but position.

    `ACTIVE` is no sum: each replica states its own.
    """
    found = dict[str, float]()
    for name, labels, value in _SAMPLE.findall(text):
        at = re.search(r'position="(\d+)"', labels)
        name = name.removesuffix("_total") + (f"[{at[1]}]" if at else "")
        known = 0.0 if name == ACTIVE else found.get(name, 0.0)
        found[name] = known + float(value)
    return found


def _speculation(
    metrics: dict[str, float], stated: Facts
) -> tuple[int, int, int] | None:
    """K, levels and top-k of the drafts; None if nothing states them."""
    if stated.get("speculative_algorithm"):
        names = ("num_draft_tokens", "num_steps", "eagle_topk")
        verified, levels, topk = (stated.get(f"speculative_{n}") for n in names)
        return (verified - 1, levels, topk or 1) if verified and levels else None
    if "speculative_algorithm" in stated:
        return 0, 0, 1
    drafts = sum(name.startswith(f"{ACCEPTED}_per_pos[") for name in metrics)
    plain = any(name in metrics for name in RUNNING) and not metrics.get(DRAFTS)
    return (drafts, drafts, 1) if drafts or plain else None


def _refusal(reply: httpx.Response) -> str:
    """What an HTTP status means here, and the remedy."""
    known = {
        401: "asks for a key; set OPENAI_API_KEY to it",
        403: "refuses the key; set OPENAI_API_KEY to another",
        404: "has no OpenAI-compatible /v1; fix the URL",
        429: "refuses so many requests at once (429); probe a smaller --batch",
    }
    said = f"answers {reply.status_code}; look at the server's log"
    facts = _facts(reply)
    facts = facts["error"] if isinstance(facts.get("error"), dict) else facts
    if reason := facts.get("message") or facts.get("detail"):
        quoted = " ".join(str(reason).split())[:MAX_QUOTED]
        said = f"answers {reply.status_code}: {quoted}"
        said += "; try --raw" if "chat template" in said else ""
    return known.get(reply.status_code, said)


def _facts(reply: httpx.Response | None) -> Facts:
    """The JSON mapping of a reply; {} if it holds none."""
    try:
        return dict(reply.json()) if reply else {}
    except (TypeError, ValueError):
        return {}
