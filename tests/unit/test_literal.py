"""Values written as Python are read, and never run."""

import pytest

from rookery.config import literal
from rookery.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("dict(net_arch=[64, 32])", {"net_arch": [64, 32]}),
        ("dict(log_std_init=-3.5, ortho_init=False)", {"log_std_init": -3.5, "ortho_init": False}),
        ("dict(activation_fn=nn.ELU)", {"activation_fn": "nn.ELU"}),
        ("dict(a=dict(b=(1, 'two', None)))", {"a": {"b": [1, "two", None]}}),
        ("{'norm_obs': True, 'norm_reward': False}", {"norm_obs": True, "norm_reward": False}),
        ("dict(\n  n=4,\n  kind='future',\n)", {"n": 4, "kind": "future"}),
        ("[dict(pi=[8], vf=[9])]", [{"pi": [8], "vf": [9]}]),
        ("dict(optimizer_class=th.optim.Adam)", {"optimizer_class": "th.optim.Adam"}),
        ("RMSpropTFLike", "RMSpropTFLike"),
        ("  1e-3 ", 0.001),
        ("dict()", {}),
        (r"'\d'", r"\d"),
    ],
)
def test_a_value_is_what_python_would_make_of_it(given, value):
    assert literal.read(given, "policy_kwargs") == value


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("__import__('os').system('true')", "__import__"),
        ("dict(a=open('x'))", "open('x')"),
        ("dict(a=nn.Linear)", "nn.Linear"),
        ("dict(a=nn)", "'nn'"),
        ("dict(a=().__class__)", "().__class__"),
        ("dict([('a', 1)])", "dict([('a', 1)])"),
        ("dict(**{'a': 1})", "{'a': 1}"),
        ("{**{'a': 1}}", "{'a': 1}"),
        ("{1: 2}", "'1'"),
        ("[x for x in (1, 2)]", "[x for x"),
        ("lambda: 1", "lambda"),
        ("1 + 1", "1 + 1"),
        ("2 ** 9999999", "2 **"),
        ("-True", "-True"),
        ("not 1", "not 1"),
        ("f'{1}'", "f'"),
        ("b'1'", "b'1'"),
        ("...", "..."),
        ("dict(a=", "cannot be read"),
        ("", "cannot be read"),
        ("a = 1", "cannot be read"),
        ("-" * 200 + "1", "---"),
        ("a" + ".a" * 4_000, "a.a.a"),
        ("[" * 90 + "]" * 90, "[["),
        ("(" * 9_000 + ")" * 900, "cannot be read"),
        ("[" + "1," * 9_000 + "]", "characters"),
    ],
)
def test_anything_else_is_refused_and_never_run(given, part):
    with pytest.raises(ConfigError) as refused:
        literal.read(given, "policy_kwargs of CartPole-v1")

    message = str(refused.value)
    assert message.startswith("policy_kwargs of CartPole-v1")
    assert part in message
    assert ("it may hold dict(...)" in message) or ("are allowed" in message)
    assert len(message) < 500


def test_names_are_words_and_import_nothing():
    assert literal.read("torch.nn.ReLU", "x") == "torch.nn.ReLU"
    assert not hasattr(literal, "torch")
