"""A server with known steps, and with faults: it speaks as an engine does.

A step takes `step_s` and commits 1 to K + 1 tokens of every request, by turns.
"""

import base64
import io
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle

import numpy as np

COUNTS = ("drafts", "accepted_tokens", "draft_tokens")
KNOWN = {"ignore_eos", "max_tokens", "messages", "model", "prompt", "stream"}
KNOWN |= {"skip_special_tokens", "stream_options", "temperature"}
"""Fields that TensorRT-LLM takes, of those that are sent to any engine."""


@dataclass
class FakeServer:
    """What it is, what it does wrong, and what it counted."""

    engine: str = "vllm"
    drafts: int = 3
    drafted: int = 0
    """Tokens of a step that drafts, where they are not K."""
    idle: int = 0
    """Steps between two that draft, as where no n-gram matches."""
    counts: bool = True
    """Whether its counters are there at all."""
    adds: str = ""
    """Further lines of its metrics."""
    stated: dict = field(default_factory=dict)
    """What its /server_info says otherwise."""
    step_s: float = 0.004
    metrics: bool = True
    stats: bool = True
    """Whether its metrics are of the engine; a vLLM's may be of Python alone."""
    others: int = 0
    key: str = ""
    refuses: int = 0
    """Answers that are this status."""
    says: str = ""
    """What a refusal's body is."""
    models: tuple = ("tiny",)
    replaces: dict = field(default_factory=dict)
    """What it answers to a path in place of what it should."""
    cert: str = ""
    """File of its certificate and key: it speaks HTTPS."""
    breaks: int = 0
    """Streams that end in the middle."""
    ends_at: int = 10**9
    """Tokens after which a reply ends."""
    after: dict = field(default_factory=dict)
    """What changes once it was asked for so many replies."""
    routes: object = None
    """A function from a reply's number to its experts, int [tokens, layers, k]."""
    lags_s: float = 0.0
    """How long a request that has ended stays in the count of those that run."""
    ended_s: float = -1e9
    asked: int = 0
    counted: dict = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self):
        handler = type("Handler", (Handler,), {"fake": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        if self.cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.cert)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        scheme = "https" if self.cert else "http"
        self.url = f"{scheme}://127.0.0.1:{self.http.server_port}"
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    @property
    def accepted(self):
        """Tokens that a step commits in the mean: 1 to K + 1 by turns."""
        return 1.0 + self.drafts / 2.0

    @property
    def proposed(self):
        """Tokens of a step that drafts."""
        whole = 2 * self.drafts - 1 if self.engine == "sglang" else self.drafts
        return self.drafted or max(whole, 0)

    def samples(self):
        """Its /metrics."""
        if self.engine == "trtllm":
            return '[{"iter": 7}]'
        if not self.stats:
            return "python_gc_objects_collected_total 1.0"
        lags = time.monotonic() < self.ended_s + self.lags_s
        running = self.others + 1 if lags else self.others
        lines = [f'{self.engine}:num_requests_running{{model="m"}} {running}']
        lines += [self.adds] if self.adds else []
        if self.drafts and self.engine == "sglang":
            place = 'sglang:spec_num_draft_tokens{dp_rank="%d"} %d'
            lines += [place % (rank, 1 + self.proposed) for rank in range(2)]
        if self.drafts and self.engine != "sglang":
            names = COUNTS if self.counts else ()
            start = "vllm:spec_decode_num_"
            lines += [f"{start}{name}_total {self.counted[name]}" for name in names]
            place = start + 'accepted_tokens_per_pos_total{{position="{}"}} 1'
            lines += [place.format(k) for k in range(self.drafts)]
        return "\n".join(lines)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        fake = self.fake
        if fake.key and self.headers["Authorization"] != f"Bearer {fake.key}":
            self.send_error(401)
        elif self.path in fake.replaces:
            self._send(fake.replaces[self.path])
        elif self.path == "/v1/models":
            owner = {"owned_by": "tensorrt_llm" if fake.engine == "trtllm" else "me"}
            self._send(json.dumps({"data": [{"id": m} | owner for m in fake.models]}))
        elif self.path == "/metrics" and fake.metrics:
            self._send(fake.samples())
        elif self.path == "/version" and fake.engine in ("vllm", "trtllm"):
            self._send('{"version": "0.25.1"}')
        elif self.path == "/server_info" and fake.engine == "sglang":
            k = fake.drafts
            spec = {"algorithm": "EAGLE3" if k else None, "num_draft_tokens": 2 * k}
            spec |= {"num_steps": k, "eagle_topk": 2}
            stated = {f"speculative_{name}": value for name, value in spec.items()}
            stated |= {"version": "0.5", "tp_size": 1}
            self._send(json.dumps(stated | fake.stated))
        else:
            self.send_error(404)

    def do_POST(self):
        fake = self.fake
        fake.sent = self.headers
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.fields = asked
        fake.said = asked["messages"][0]["content"] if "messages" in asked else ""
        with fake.lock:
            fake.asked += 1
            if fake.asked in fake.after:
                vars(fake).update(fake.after[fake.asked])
            broken, fake.breaks = fake.breaks > 0, max(fake.breaks - 1, 0)
        if fake.refuses:
            self._send(fake.says, fake.refuses)
        elif fake.engine == "trtllm" and not asked.keys() <= KNOWN:
            self._send('{"message": "Extra inputs are not permitted"}', 400)
        elif fake.routes and not asked.get("stream"):
            self._send(json.dumps(self._routed(fake.routes(fake.asked))))
        elif "/chat" in fake.replaces:
            self._send(fake.replaces["/chat"])
        else:
            self._send("")
            self._stream(min(asked["max_tokens"], fake.ends_at), broken)

    def _routed(self, routes):
        """A whole reply after a prompt of 9 tokens; its last token was not run."""
        done = len(routes) + 1 - 9
        reply = {"usage": {"prompt_tokens": 9, "completion_tokens": done}}
        choice, file = {"message": {"content": "word"}}, io.BytesIO()
        if self.fake.engine == "sglang":
            flat = base64.b64encode(routes.astype("int32").tobytes()).decode()
            reply["sglext"] = {"routed_experts": flat}
        else:
            np.save(file, routes.astype("uint8"))
            choice["routed_experts"] = base64.b64encode(file.getvalue()).decode()
        return reply | {"choices": [choice]}

    def _stream(self, tokens, broken):
        fake, done, steps = self.fake, 1, 0
        self._event(1, iterations=1)
        for committed in cycle(range(1, fake.drafts + 2)):
            time.sleep(fake.step_s)
            if idle := bool(fake.idle and steps % (fake.idle + 1)):
                committed = 1
            done, steps = min(done + committed, tokens), steps + 1
            with fake.lock:
                fake.counted["drafts"] += not idle
                fake.counted["accepted_tokens"] += committed - 1
                fake.counted["draft_tokens"] += (not idle) * fake.proposed
            self._event(done, iterations=1 + steps)
            if done == tokens or (broken and done > 9):
                break
        fake.ended_s = time.monotonic()
        if not broken:
            self._event(done, steps)
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.connection.shutdown(2)

    def _event(self, done, steps=0, iterations=0):
        """One message; SGLang counts the steps of a reply in its last.

        TensorRT-LLM states the mean over all iterations so far, prefill among them.
        """
        choices = [] if steps else [{"delta": {"content": "word "}}]
        if choices and self.fake.engine == "trtllm":
            choices[0]["avg_decoded_tokens_per_iter"] = done / iterations
        message = {"choices": choices, "usage": {"prompt_tokens": 9}}
        message["usage"]["completion_tokens"] = done
        if steps and self.fake.engine == "sglang":
            counted = {"spec_verify_ct": steps}
            # Of the K that the server started with, as SGLang counts it.
            counted["spec_num_proposed_drafts"] = steps * (2 * self.fake.drafts - 1)
            message["sglext"] = {"spec_tokens_details": counted}
        self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())
        self.wfile.flush()

    def _send(self, text, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())
