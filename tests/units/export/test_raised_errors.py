"""What a model's code raised, as the exporter says it in one line, with the remedy."""

from __future__ import annotations

import pytest

from export.raised_errors import raised_on_examples

RAGGED = """Exception encountered when calling layer 'model_1' (type Model).

\x1b[1mArguments to from_row_splits do not form a valid RaggedTensor:monotonic
Condition x >= 0 did not hold element-wise:
x (shape=(255,) dtype=int32) =
['0', '1', '-1', '...']\x1b[0m

Call arguments received by layer 'model_1' (type Model):
  • inputs={'seen__values': 'tf.Tensor(shape=(256,), dtype=int64)'}"""
UNKNOWN = (
    "{{function_node __wrapped__StringToNumber_device_/job:localhost/device:CPU:0}} "
    "StringToNumberOp could not correctly convert string:  [Op:StringToNumber] name: "
)
MADE = (
    "the examples are made up: if the model does not take every value, write some that callers "
    "would send, and name their file as verify.examples"
)
OWN = "correct verify.examples, or the model: a request with such values would fail, too"

MESSAGES = [
    (
        RAGGED,
        True,
        "the model's call raised an error on the examples: ValueError: Arguments to "
        "from_row_splits do not form a valid RaggedTensor:monotonic Condition x >= 0 did not hold "
        "element-wise: x "
        "(shape=(255,) dtype=int32) = ['0', '1', '-1', '...']; the first axis of every input is "
        "the batch, so values and offsets of a ragged tensor are no two inputs: declare one input "
        'with kind = "ragged", and let the call take a tf.RaggedTensor',
    ),
    (
        UNKNOWN,
        True,
        "the model's call raised an error on the examples: ValueError: StringToNumberOp could not "
        f"correctly convert string:; {MADE}",
    ),
    (
        "no such word",
        False,
        f"the model's call raised an error on the examples: ValueError: no such word; {OWN}",
    ),
]


@pytest.mark.parametrize(("text", "are_synthetic", "message"), MESSAGES)
def test_error_on_examples_is_one_line_with_its_remedy(
    text: str, are_synthetic: bool, message: str
) -> None:
    rejection = raised_on_examples(
        "the model's call", ValueError(text), are_synthetic=are_synthetic
    )
    assert str(rejection) == message
