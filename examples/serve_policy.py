"""Serve an exported policy over HTTP, without birl: ``python serve_policy.py policy.onnx 8000``.

    POST {"rows": [{"speed": 3.1, "weather": "rain"}, …]}  ->  {"actions": ["keep", …], "log_probabilities": […]}

Rows have the columns of the log, with values as in JSON or CSV; ``policy.schema.json`` defines their encoding. If a
column fills missing values with the last value of the episode (``forward``), send the rows of one episode in order, in
one request. For a row that does not fit, the server answers with status 400:

    {"error": "unknown category", "row": 0, "column": "weather", "value": "fog"}

A request may have `MAX_BYTES` bytes and take `SECONDS` seconds, and `CONNECTIONS` clients are served at a time; others
wait. The server listens on this machine only and has no authentication: put a proxy in front of it for anything else.
"""

import hashlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime

MAX_BYTES, SECONDS, CONNECTIONS = 2**20, 10.0, 32


def encode(value, column, last):
    """Return the numbers that the policy reads for a value, given the entry of its column in the schema."""
    empty = value is None or value == ""  # as in CSV files
    if values := column.get("values"):
        text = str(value).lower()
        same = [value == each or (not isinstance(each, str) and text == str(each).lower()) for each in values]
        alike = empty or isinstance(value, str) == isinstance(values[0], str)
        if not any(same) and not (column["unknown"] and alike):
            raise ValueError("missing value" if empty else "unknown category")
        return same + [not any(same)] * column["unknown"]
    numbers = np.full_like(last, np.nan) if empty else np.array(value, np.float32).reshape(last.shape)
    if missing := bool(np.isnan(numbers).any()):
        if column["missing"] not in ("fill", "forward"):
            raise ValueError("missing value")
        numbers = last
    elif not np.isfinite(numbers).all():
        raise ValueError("not a finite number")
    elif column["missing"] == "forward":
        last[:] = numbers
    return [*numbers, missing] if column["indicator"] else [*numbers]


def act(rows):
    """Return actions and, for a stochastic policy, the logarithms of their probabilities: log both."""
    given = {}
    for each in schema["inputs"]:
        numbers = np.random.default_rng().normal(size=(len(rows), *each["shape"][1:]))  # for a stochastic policy
        if each["role"] != "noise":
            encoded = [[] for _ in rows]
            for column in each["columns"]:
                last = np.full(column.get("length") or 1, column.get("fill"), np.float32)
                for index, row in enumerate(rows):
                    try:
                        encoded[index] += encode(row[column["column"]], column, last)
                    except (KeyError, TypeError, ValueError) as error:
                        problem = "missing column" if isinstance(error, KeyError) else str(error)
                        where = {"row": index, "column": column["column"], "value": row.get(column["column"])}
                        raise ValueError({"error": problem, **where}) from error
            numbers = np.reshape(encoded, numbers.shape)
        given[each["name"]] = numbers.astype(each["dtype"])
    actions, *log_probabilities = (values.tolist() for values in session.run(None, given))
    names = schema["action"].get("values")
    answer = {"actions": [names[action] for action in actions] if names else actions}
    return {**answer, "log_probabilities": log_probabilities[0]} if log_probabilities else answer


class Handler(BaseHTTPRequestHandler):
    """Answer a request."""

    timeout = SECONDS  # of silence

    def handle(self):
        # A client that sends a byte now and then is never silent, so its connection is closed after the same time.
        limit = threading.Timer(SECONDS, self.connection.shutdown, [socket.SHUT_RDWR])
        limit.daemon = True
        limit.start()
        try:
            super().handle()
        except OSError:
            pass  # the client has gone, or was too slow
        finally:
            limit.cancel()

    def do_POST(self):
        try:
            size = int(self.headers["Content-Length"])
            if not 0 <= size <= MAX_BYTES:
                raise ValueError({"error": f"Content-Length is {size}; it must be from 0 to {MAX_BYTES}"})
            rows = json.loads(self.rfile.read(size))["rows"]
            status, answer = 200, act([dict(row) for row in rows])
        except Exception as error:
            known = error.args and error.args[0]
            status, answer = (
                400,
                known if isinstance(known, dict) else {"error": f'not {{"rows": [{{…}}]}}: {error!r:.500}'},
            )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


class Server(ThreadingHTTPServer):
    """A thread for each connection, with a limit."""

    places = threading.BoundedSemaphore(CONNECTIONS)

    def process_request(self, request, client_address):
        self.places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address):
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()


path = Path(sys.argv[1])
schema = json.loads(path.with_suffix(".schema.json").read_text("utf-8"))
if schema["version"] != 1 or hashlib.sha256(path.read_bytes()).hexdigest() != schema["model"]["sha256"]:
    sys.exit(f"{path} is not the file that its schema describes: export the policy again")
roles = {"observation", "action_mask", "noise"}
if any(each["role"] not in roles or each.get("frames", 1) > 1 for each in schema["inputs"]):
    sys.exit(f"{path} needs earlier rows, which this server does not keep")
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
