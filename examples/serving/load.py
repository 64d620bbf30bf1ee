"""Load a server: python load.py URL BODY.json [--clients 2] [--seconds 10].

Each client sends BODY, one request after the other, over a connection of its own. Printed are
requests per second, and the 50th and 99th percentile of the time from request to answer.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

WARM_UP = 20  # first requests of each client, which do not count


def client(url: str, body: bytes, seconds: float) -> list[float]:
    """Seconds that each request took. Raises RuntimeError for an answer that is no 200."""
    place = urlsplit(url)
    assert place.hostname is not None, url
    connection = http.client.HTTPConnection(place.hostname, place.port)
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        connection.request("POST", place.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer.decode()}")
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server of the Open Inference Protocol.")
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    with ThreadPoolExecutor(asked.clients) as pool:
        runs = [pool.submit(client, asked.url, asked.body.read_bytes(), asked.seconds)
                for _ in range(asked.clients)]  # fmt: skip
        times = [spent for run in runs for spent in run.result()]
    cuts = statistics.quantiles(times, n=100)
    print(f"{asked.clients} clients, {len(times)} requests: {len(times) / asked.seconds:.0f} per "
          f"second, p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
