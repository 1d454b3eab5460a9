"""Requests made up from the OpenAPI document: no answer of 5xx, none that the document does not promise."""

import contextlib
from itertools import product

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

pytestmark = pytest.mark.slow
CHECKS = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance,
]  # fmt: skip


def test_no_request_breaks_the_server(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 13
    for mode, operation in product([GenerationMode.POSITIVE, GenerationMode.NEGATIVE], operations):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def send(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "small"  # else nearly all end at an unknown model
            case.call_and_validate(checks=CHECKS)

        with contextlib.suppress(Unsatisfiable):  # a route without input has no wrong request
            send()
    for route in ("/v1/embeddings", "/embed", "/similarity"):
        answered = server.metric(f'cse_requests_total{{route="{route}",status="200"}}')
        refused = server.metric(f'cse_requests_total{{route="{route}",status="4')
        assert answered > 3 and refused > 3, route
    assert server.metric('cse_requests_total{route="other",status="5') == 0
    assert server.get("/health").status_code == 200
