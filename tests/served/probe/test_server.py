"""Each request has a connection of its own."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from evict_profile.served.probe.server import Server


class OneAnswer(BaseHTTPRequestHandler):
    """A connection that says it stays, and answers its first request alone."""

    protocol_version, asked = "HTTP/1.1", 0

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        self.asked += 1
        if self.asked > 1:
            self.close_connection = True
            return
        body = b"vllm:num_requests_running 0.0"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_a_connection_that_drops_its_next_request_is_not_used_again(url):
    async def twice():
        server = Server(url)
        return [await server.running() for _ in range(2)]

    assert asyncio.run(twice()) == [0, 0]
