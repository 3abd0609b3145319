"""A public client of the Open Inference Protocol against a running server; its answers are compared with /predict.

pip install 'tritonclient[http]' pillow     # in an environment of its own; purereplay is not needed
purereplay serve --state state              # in another terminal
python benchmarks/serve_client.py 127.0.0.1:8491 --out results/serve/client.json
"""

from __future__ import annotations

import argparse
import base64
import importlib.metadata
import json
import urllib.request
from io import BytesIO
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

N = 100  # images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--name", default="purereplay")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    client = triton.InferenceServerClient(options.address)
    metadata = client.get_model_metadata(options.name)
    shape = metadata["inputs"][0]["shape"][1:]
    images = np.random.default_rng(0).integers(0, 256, (N, *shape), dtype=np.uint8)
    expected, labels = _predictions(options.address, images)
    differences, same = {}, {}
    for kind in (True, False):
        tensor = triton.InferInput("images", list(images.shape), "UINT8")
        tensor.set_data_from_numpy(images, binary_data=kind)
        outputs = [triton.InferRequestedOutput(name, binary_data=kind) for name in ("probabilities", "label")]
        answer = client.infer(options.name, [tensor], outputs=outputs, model_version=metadata["versions"][0])
        name = "binary" if kind else "json"
        differences[name] = float(np.abs(answer.as_numpy("probabilities") - expected).max())
        found = [text.decode() if isinstance(text, bytes) else text for text in answer.as_numpy("label").tolist()]
        same[name] = found == labels
    done = {
        "client": f"tritonclient {importlib.metadata.version('tritonclient')}",
        "live, ready, model ready": [
            client.is_server_live(),
            client.is_server_ready(),
            client.is_model_ready(options.name),
        ],
        "server": client.get_server_metadata(),
        "model": metadata,
        "images": N,
        "largest_difference_from_predict": differences,
        "same_labels_as_predict": same,
        "wrong_shape": _refusal(client, options.name),
    }
    text = json.dumps(done, indent=1) + "\n"
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


def _predictions(address: str, images: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return probabilities and labels of /predict."""
    body = json.dumps({"images": [_png(image) for image in images], "probabilities": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}/predict", body)) as answer:
        found = json.loads(answer.read())["predictions"]
    return np.array([list(each["probabilities"].values()) for each in found]), [each["label"] for each in found]


def _png(image: np.ndarray) -> str:
    file = BytesIO()
    Image.fromarray(np.moveaxis(image, 0, -1).squeeze()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _refusal(client: triton.InferenceServerClient, name: str) -> str:
    tensor = triton.InferInput("images", [1, 1, 1, 1], "UINT8")
    tensor.set_data_from_numpy(np.zeros((1, 1, 1, 1), np.uint8))
    try:
        client.infer(name, [tensor])
    except InferenceServerException as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    main()
