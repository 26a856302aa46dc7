"""Serve an exported policy over HTTP, without birl: ``python serve_policy.py policy.onnx 8000``.

    POST {"rows": [{"speed": 3.1, "weather": "rain"}, …]}  ->  {"actions": ["keep", …], "log_probabilities": […]}

Rows are those of the log, as JSON or CSV has them; ``policy.schema.json`` says what becomes of them. Where a missing
value is the last one of the episode (``forward``), that comes from the same request: send the steps of one episode, in
order. What does not fit gets status 400: {"error": "unknown category", "row": 0, "column": "weather", "value": "fog"}.
"""

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import onnxruntime


def encode(rows, columns):
    """Rows of a log as the numbers ``[n, D]`` that the policy has learned from."""
    encoded, last = [], {}
    for index, row in enumerate(rows):
        parts = []
        for told in columns:
            name, value = told["column"], row.get(told["column"])
            try:
                if name not in row:
                    raise ValueError("missing column")
                value = None if isinstance(value, str) and not value else value  # an empty field of a CSV file
                parts.append(category(told, value) if "values" in told else quantity(told, value, last))
            except ValueError as error:
                raise LookupError({"error": str(error), "row": index, "column": name, "value": value}) from error
        encoded.append(np.concatenate(parts))
    return np.array(encoded)


def category(told, value):
    """A one-hot vector; its last number stands for unknown and missing values where these are allowed."""
    values = told["values"]
    if isinstance(value, str) and not isinstance(values[0], str):
        value = {"true": True, "false": False, **{str(each): each for each in values}}.get(value.lower(), value)
    alike = value is None or isinstance(value, str) == isinstance(values[0], str)
    if value not in values and not (told["unknown"] and alike):
        raise ValueError("missing value" if value is None else "unknown category")
    return np.eye(told["size"])[values.index(value) if value in values else len(values)]


def quantity(told, value, last):
    """A number, or those of a list, and whether they were missing."""
    length = told["length"] or 1
    try:
        numbers = np.full(length, np.nan) if value is None else np.asarray(value, np.float32).reshape(length)
    except (TypeError, ValueError):
        raise ValueError("not a number" if length == 1 else f"not {length} numbers") from None
    if missing := bool(np.isnan(numbers).any()):
        if told["missing"] not in ("fill", "forward"):
            raise ValueError("missing value")
        numbers = last.get(told["column"], np.full(length, told["fill"]))
    elif not np.isfinite(numbers).all():
        raise ValueError("not a finite number")
    elif told["missing"] == "forward":
        last[told["column"]] = numbers
    return np.append(numbers, missing) if told["indicator"] else numbers


class Policy:
    """An ONNX file with its schema."""

    def __init__(self, path):
        self.schema = json.loads(path.with_suffix(".schema.json").read_text("utf-8"))
        if (self.schema["format"], self.schema["version"]) != ("birl policy schema", 1):
            sys.exit(f"{path}: its schema is of version {self.schema['version']}, this server reads version 1")
        if hashlib.sha256(path.read_bytes()).hexdigest() != self.schema["model"]["sha256"]:
            sys.exit(f"{path} is not the file that its schema describes: export the policy again")
        if any(each["role"] not in ROLES or each.get("frames", 1) > 1 for each in self.schema["inputs"]):
            sys.exit(f"{path} needs what was before a row, which this server does not keep")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def __call__(self, rows):
        """Actions for rows of a log and, of a policy that draws, the logarithms of their probabilities: log them."""
        given = {each["name"]: ROLES[each["role"]](rows, each).astype(each["dtype"]) for each in self.schema["inputs"]}
        found = dict(zip(("actions", "log_probabilities"), self.session.run(None, given), strict=False))
        found = {name: values.tolist() for name, values in found.items()}
        if names := self.schema["action"].get("values"):
            found["actions"] = [names[number] for number in found["actions"]]
        return found


MASK = {"missing": "error", "indicator": False}
ROLES = {
    "observation": lambda rows, told: encode(rows, told["columns"]).reshape(len(rows), *told["shape"][1:]),
    "action_mask": lambda rows, told: encode(rows, [{**MASK, "column": told["column"], "length": told["shape"][1]}]),
    "noise": lambda rows, told: np.random.default_rng().normal(size=(len(rows), told["shape"][1])),
}


class Handler(BaseHTTPRequestHandler):
    """Answers requests by ``Handler.policy``."""

    def do_POST(self):
        """One request."""
        try:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
            if not isinstance(rows, list):
                raise TypeError("the rows are no list")
            status, answer = 200, self.policy([dict(row) for row in rows])
        except LookupError as error:
            status, answer = 400, error.args[0] if isinstance(error.args[0], dict) else {"error": "no rows"}
        except (TypeError, ValueError) as error:
            status, answer = 400, {"error": f"not like {{\"rows\": [{{…}}]}}: {error}"}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


if __name__ == "__main__":
    Handler.policy = Policy(Path(sys.argv[1]))
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
