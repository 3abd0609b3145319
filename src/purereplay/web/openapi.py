"""The OpenAPI document of the server's interface."""

from __future__ import annotations

from typing import Any

from purereplay.live.items import MAX_ID, MAX_LABEL
from purereplay.live.judgements import MAX_JUDGEMENTS
from purereplay.web.intake import MAX_ITEMS

_TEXT: dict[str, Any] = {"type": "string"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _list(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_IMAGE = {"type": "string", "contentEncoding": "base64", "description": "Base64 of a PNG, JPEG, BMP, GIF or WebP file."}
_PREDICTION = _object({"label": _TEXT, "probability": _SHARE}, probabilities={"type": "object"})
_REFUSED = _object({"error": _TEXT})
_RESULTS = ["stored", "labelled", "waits for a label", "known"]
_NEW_LABEL = {"const": True, "description": "There if no sample had this label before."}
_RECEIPT = {
    "oneOf": [
        _object({"id": _TEXT, "result": {"enum": _RESULTS}}, new_label=_NEW_LABEL),
        _object({"id": _TEXT, "error": _TEXT}),
    ]
}
_OUTPUT = _object(
    {"name": {"enum": ["probabilities", "label"]}},
    parameters=_object({}, binary_data={"type": "boolean"}),
)
_TENSOR = _object({"name": _TEXT, "datatype": _TEXT, "shape": _list({"type": "integer"})})
_INPUT = _object(
    {
        "name": {"enum": ["images", "features"]},
        "datatype": {"enum": ["UINT8", "FP32"]},
        "shape": _list(_WHOLE, minItems=2, maxItems=4),
    },
    data={"type": "array", "description": "Numbers, flat or nested; from 0 to 255 for images."},
    parameters=_object({}, binary_data_size=_WHOLE),
)

_SCHEMAS = {
    "Error": _object({"error": _TEXT}),
    "Predict": _object(
        {"images": _list(_IMAGE, minItems=1, maxItems=MAX_ITEMS)},
        probabilities={"type": "boolean", "description": "Return the probability of every label."},
    )
    | {"additionalProperties": False},
    "Predictions": _object(
        {
            "model": _object({"name": _TEXT, "version": _TEXT}),
            "predictions": _list({"oneOf": [_PREDICTION, _REFUSED]}),
        }
    ),
    "Sample": _object(
        {"id": {"type": "string", "minLength": 1, "maxLength": MAX_ID}},
        label={"type": "string", "minLength": 1, "maxLength": MAX_LABEL},
        image=_IMAGE,
    )
    | {
        "additionalProperties": False,
        "description": "An image with a label, an image whose label comes later, or the label of an image that came.",
        "anyOf": [{"required": ["label"]}, {"required": ["image"]}],
    },
    "Learn": _object({"samples": _list(_ref("Sample"), minItems=1, maxItems=MAX_ITEMS)})
    | {"additionalProperties": False},
    "Learned": _object({"acknowledged": _WHOLE, "refused": _WHOLE, "samples": _list(_RECEIPT)}),
    "Judgements": _object(
        {
            "judgements": _list(
                _object(
                    {
                        "number": _WHOLE,
                        "id": _TEXT,
                        "given_label": _TEXT,
                        "clean_probability": _SHARE | {"type": ["number", "null"]},
                        "decision": {"enum": ["accepted", "rejected", "unjudged", "corrected", "confirmed"]},
                        "n_samples": {"type": ["integer", "null"]},
                        "reason": _TEXT,
                        "corrected_label": {"type": ["string", "null"]},
                    }
                )
            ),
            "next": _WHOLE,
            "more": {"type": "boolean"},
        }
    ),
    "Status": _object({"state": {"type": "object"}, "server": {"type": "object"}}),
    "Health": _object({"status": _TEXT, "predicts": {"type": "boolean"}, "trains": {"type": "boolean"}}),
    "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_TENSOR),
            "outputs": _list(_TENSOR),
        }
    ),
    "Infer": _object(
        {"inputs": _list(_INPUT, minItems=1, maxItems=1)},
        id={"type": "string", "maxLength": 200},
        outputs=_list(_OUTPUT, maxItems=2),
        parameters=_object({}, binary_data_output={"type": "boolean"}),
    ),
    "Inferred": _object({"model_name": _TEXT, "model_version": _TEXT, "outputs": _list(_TENSOR)}, id=_TEXT),
}

_ERRORS = {
    "401": "The bearer token is missing or wrong.",
    "403": "The request comes from another site.",
    "421": "The Host header does not name this server.",
}
_BODY_ERRORS = {
    "400": "The request cannot be used.",
    "408": "The request did not arrive in time.",
    "413": "The request is too long.",
    "415": "The request is compressed, or a form.",
    "503": "There is no classifier yet, too much waits, or the state is gone.",
    "507": "The disk is full; nothing of the request was recorded.",
}


def _errors(**more: str) -> dict[str, Any]:
    found = {**_ERRORS, **{status.lstrip("_"): text for status, text in more.items()}}
    return {status: _json(_ref("Error"), text) for status, text in found.items()}


def _get(name: str, summary: str, schema: str, *parameters: dict[str, Any], **errors: str) -> dict[str, Any]:
    answer = {"200": _json(_ref(schema), summary)}
    found: dict[str, Any] = {"operationId": name, "summary": summary, "responses": {**answer, **_errors(**errors)}}
    return {"get": {**found, "parameters": list(parameters)} if parameters else found}


def _post(
    name: str, summary: str, body: str, answer: tuple[str, str], *parameters: dict[str, Any], images: bool = False
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ref(body)}}
    if images:
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    status, schema = answer
    errors = {f"_{code}": text for code, text in {**_BODY_ERRORS, "404": "There is no such model."}.items()}
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {status: _json(_ref(schema), summary), **_errors(**errors)},
    }
    return {"post": {**found, "parameters": list(parameters)} if parameters else found}


def _in_path(name: str, **limits: Any) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, **limits}}


def _in_query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _plain(name: str, summary: str, media: str, schema: dict[str, Any], **errors: str) -> dict[str, Any]:
    answer = {"description": summary, "content": {media: {"schema": schema}}}
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": answer, **_errors(**errors)}}}


def _paths(model: str) -> dict[str, Any]:
    since = _in_query("since", {**_WHOLE, "default": 0}, "Number of the last judgement that is known.")
    limits = {"type": "integer", "minimum": 1, "maximum": MAX_JUDGEMENTS}
    limit = _in_query("limit", limits, "Most judgements to return.")
    answer_ready = {"type": "object"}
    paths = {
        "/predict": _post("predict", "Classify images.", "Predict", ("200", "Predictions"), images=True),
        "/learn": _post("learn", "Add samples; they are on the disk when this answers.", "Learn", ("202", "Learned")),
        "/judgements": _get(
            "judgements", "Verdicts on samples.", "Judgements", since, limit, _400="The query cannot be used."
        ),
        "/status": _get("status", "The state and the server in numbers.", "Status"),
        "/health": _get("health", "Whether the server works.", "Health", _503="Training does not run."),
        "/metrics": _plain("metrics", "Measurements for Prometheus.", "text/plain", _TEXT),
        "/openapi.json": _plain("openapi", "This document.", "application/json", {"type": "object"}),
        "/v2": _get("serverMetadata", "Open Inference Protocol: the server.", "ServerMetadata"),
        "/v2/health/live": _plain("serverLive", "Whether the server runs.", "application/json", answer_ready),
        "/v2/health/ready": _plain(
            "serverReady", "Whether there is a classifier.", "application/json", answer_ready, _503="Not yet."
        ),
    }
    missing = {"_404": "There is no such model.", "_503": "There is no classifier yet."}
    for version in ("", "/versions/{version}"):
        base = "/v2/models/{name}" + version
        own = [_in_path("name", enum=[model])] + ([_in_path("version")] if version else [])
        suffix = "OfVersion" if version else ""
        paths[base] = _get(f"metadata{suffix}", "Inputs and outputs of the model.", "ModelMetadata", *own, **missing)
        ready = _plain(f"modelReady{suffix}", "Whether it is ready.", "application/json", answer_ready, **missing)
        ready["get"]["parameters"] = own
        paths[f"{base}/ready"] = ready
        paths[f"{base}/infer"] = _post(f"infer{suffix}", "Classify images.", "Infer", ("200", "Inferred"), *own)
    return paths


def document(version: str, model: str) -> dict[str, Any]:
    """Return the document of a server whose model has this name."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "purereplay",
            "version": version,
            "description": "Learns continually from images with unreliable labels, and classifies images meanwhile.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": _paths(model),
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
