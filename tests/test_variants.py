import inspect

import pytest

from moeir import variants
from moeir.errors import UsageError
from moeir.parsing import format_value
from moeir.training.regularizers import RegularizerWeights
from moeir.variants import REQUIRED, Spec, parse_spec


def test_a_spec_is_a_name_and_pairs():
    assert parse_spec("came-sum") == Spec("came-sum")
    assert parse_spec("came:shared-layers=4,experts=lexical+local") == Spec("came", (("shared_layers", "4"), ("experts", "lexical+local")))
    assert parse_spec("bm25:k1=0.9,") == Spec("bm25", (("k1", "0.9"),))
    assert parse_spec("dense:pooling=a=b").options == (("pooling", "a=b"),)
    for text in ("rrf", "rrf:constant=60", "came:a=1,b=x+y"):
        assert str(parse_spec(text)) == text


@pytest.mark.parametrize(
    ("package", "text", "message"),
    [
        ("fusion", ":a=1", "a spec starts with a name, found ':a=1'; write name:key=value,key=value"),
        ("fusion", "rrf:60", "rrf:60: expected key=value, found '60' (inside a value write + for a comma)"),
        ("fusion", "rrf:=60", "rrf:=60: expected key=value, found '=60' (inside a value write + for a comma)"),
        ("fusion", "rrf:a-b=1,a_b=2", "rrf:a-b=1,a_b=2: a_b is given twice"),
        ("fusion", "came-summ", "fusion has no 'came-summ'; did you mean 'came-sum'? (moeir variants fusion lists them)"),
        ("fusion", "rrf:konstant=1", "rrf:konstant=1: rrf has no option 'konstant'; did you mean 'constant'?"),
        ("fusion", "rrf:constant=x", "rrf:constant=x: constant: expected a number, found 'x'"),
        ("indexes", "candidates", "indexes has no 'candidates'"),
        ("fusions", "rrf", "there is no package 'fusions'; did you mean 'fusion'?"),
        ("utils", "rrf", "there is no package 'utils'; known: "),
    ],
)
def test_what_is_no_spec_of_a_package_is_refused_with_the_nearest_name(package, text, message):
    with pytest.raises(UsageError) as caught:
        variants.resolve_spec(package, text)
    assert str(caught.value).startswith(message)


def test_options_come_with_their_types_and_those_of_a_dataclass_are_its_fields():
    variant, options = variants.resolve_spec("architectures", "came:shared_layers=4,experts=lexical+local,normalise=true,local-dim=16")
    assert (variant.name, variant.symbol, variant.module) == ("came", "Came", "moeir.architectures.came")
    assert options == {"shared_layers": 4, "experts": ("lexical", "local"), "normalise": True, "local_dim": 16}
    bound = variants.bind_variant("training.objectives", "kl:temperature=2,load_balance=0.5,by_side=true")
    assert bound.keywords == {"temperature": 2.0, "regularizers": RegularizerWeights(load_balance=0.5, by_side=True)}


def test_an_option_without_default_must_be_given(monkeypatch):
    option = variants.Option("limit", "int", REQUIRED)
    variant = variants.Variant("fusion", "needy", "needy", "moeir.fusion.formulas", "", (option,))
    monkeypatch.setattr(variants, "find_variant", lambda package, name: variant)
    with pytest.raises(UsageError, match="needy: needy needs limit=…"):
        variants.resolve_spec("fusion", "needy")
    assert variants.resolve_spec("fusion", "needy:limit=3")[1] == {"limit": 3}


@pytest.mark.parametrize("package", variants.PACKAGES)
def test_every_variant_says_what_it_is_and_has_defaults_that_convert_and_are_those_of_python(package):
    package_variants = variants.list_variants(package)
    assert package_variants
    for variant in package_variants:
        assert variant.summary.endswith((".", ":")) or len(variant.summary) > 20, variant
        assert "_" not in variant.name
        spec = Spec(variant.name, tuple((option.name, format_value(option.default)) for option in variant.options))
        defaults = {option.name: option.default for option in variant.options}
        assert variants.resolve_spec(package, str(spec))[1] == defaults
        signature = inspect.signature(variants.bind_variant(package, variant.name).func)
        keywords = {one.name: one.default for one in signature.parameters.values() if one.kind is one.KEYWORD_ONLY}
        for parameter in {option.parameter for option in variant.options if option.parameter is not None}:
            keywords |= vars(keywords.pop(parameter))
        assert keywords == defaults


def test_variants_are_listed(moeir):
    result = moeir("variants", "fusion")
    assert result.stdout.splitlines()[0] == "fusion" and "  rrf            Reciprocal rank fusion" in result.stdout
    assert "constant=60.0" in result.stdout
    assert moeir("variants", "fusoin").stderr.startswith("error: there is no package or variant 'fusoin'; did you mean 'fusion'?")
    assert moeir("variants", "objectives").stdout.startswith("training.objectives\n  bce ")
    assert "`activation`: relu, or log1p_relu" in moeir("variants", "splade").stdout
    assert len(moeir("variants").stdout.splitlines()) > 20
