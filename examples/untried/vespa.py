"""Vespa: an application with a tensor for each expert, and rank profiles that compute each expert's score and their sum. Never run.

moeir export --to examples.untried.vespa:Vespa --encodings enc --corpus corpus.jsonl --output export/vespa
"""

from typing import Any

from moeir.export_targets.base import ExportedDocument, ExportSchema, ExportTarget, float16_to_lists, text_payload, to_nine_digits

IMPACT_SCALE = 100  # impact of a weight of 1; `wand` finds candidates by integer weights
README = """# {name}

Written to Vespa's documentation, not run against it here.

    ./load.sh                                 # deploys app/ and feeds, with the command `vespa` set to its target

`app/` is the application. `…_vector`, `…_terms` and `…_tokens` are tensors; `…_impacts` are the terms again with whole weights ({impacts}
for a weight of 1), by which `wand` finds candidates that the tensors then score exactly. Rank profile `moeir`: candidates by the dense and
lexical scores, the late-interaction score added in the second phase. Its inputs are `query(q_EXPERT)`.

Queries are encoded by the checkpoint that encoded the documents, in Python:

    import moeir
    query = moeir.open_checkpoint("CHECKPOINT", device="cpu").encode(["…"], "query")
    query["EXPERT"].export_row(0)        # a vector, vectors of tokens, or terms (lines of terms.txt, from 0) and weights
"""
LOAD_SCRIPT = """#!/bin/sh
# Deploys the application and feeds the documents: `vespa config set target …` says where
set -eu
cd "$(dirname "$0")"
vespa deploy --wait 300 app
cat documents-*.jsonl | vespa feed -
"""
SERVICES_XML = """<?xml version="1.0" encoding="UTF-8"?>
<services version="1.0">
  <container id="default" version="1.0">
    <search/>
    <document-api/>
    <nodes><node hostalias="node1"/></nodes>
  </container>
  <content id="{name}" version="1.0">
    <redundancy>1</redundancy>
    <documents><document type="{name}" mode="index"/></documents>
    <nodes><node hostalias="node1" distribution-key="0"/></nodes>
  </content>
</services>
"""


class Vespa(ExportTarget):
    """A Vespa application and its feed: tensors for all experts, a rank profile that adds their scores."""

    def __init__(self, schema: ExportSchema, *, name: str = "passages") -> None:
        super().__init__(schema, name)

    def lines(self, document: ExportedDocument) -> list[Any]:
        fields: dict[str, Any] = text_payload(document.text)
        fields |= {f"{name}_vector": {"values": float16_to_lists(vector)} for name, vector in document.dense.items()}
        for name, (numbers, weights) in document.sparse.items():
            terms = {self.schema.terms[term]: weight for term, weight in zip(numbers.tolist(), to_nine_digits(weights), strict=True)}
            fields[f"{name}_terms"] = {"cells": terms}
            fields[f"{name}_impacts"] = {term: impact for term, weight in terms.items() if (impact := round(IMPACT_SCALE * weight))}
        for name, tokens in document.multivector.items():
            fields[f"{name}_tokens"] = {"blocks": {str(position): vector for position, vector in enumerate(float16_to_lists(tokens))}}
        return [{"put": f"id:{self.name}:{self.name}::{document.text.id}", "fields": fields}]

    def files(self) -> dict[str, str]:
        schema = "\n".join(
            [f"schema {self.name} {{", f"  document {self.name} {{", *self._schema_fields(), "  }", *self._rank_profile(), "}", ""]
        )
        application = {f"app/schemas/{self.name}.sd": schema, "app/services.xml": SERVICES_XML.format(name=self.name)}
        return {**application, "load.sh": LOAD_SCRIPT, "README.md": README.format(name=self.name, impacts=IMPACT_SCALE)}

    def _schema_fields(self) -> list[str]:
        widths, experts_of = self.schema.widths, self.schema.experts_of
        lines = ["    field id type string { indexing: summary | attribute }"]
        lines += [f"    field {name} type string {{ indexing: summary | index }}" for name in ("title", "text")]
        for name in experts_of("dense"):
            lines.append(f"    field {name}_vector type tensor<float>(x[{widths[name]}]) {{")
            lines += ["      indexing: attribute | index", "      attribute { distance-metric: dotproduct }", "    }"]
        for name in experts_of("sparse"):
            lines.append(f"    field {name}_terms type tensor<float>(term{{}}) {{ indexing: attribute }}")
            lines.append(f"    field {name}_impacts type weightedset<string> {{")
            lines += ["      indexing: attribute", "      attribute: fast-search", "    }"]
        for name in experts_of("multivector"):
            lines.append(f"    field {name}_tokens type tensor<float>(token{{}}, x[{widths[name]}]) {{ indexing: attribute }}")
        return lines

    def _rank_profile(self) -> list[str]:
        widths, experts_of = self.schema.widths, self.schema.experts_of
        inputs = [f"query(q_{name}) tensor<float>(x[{widths[name]}])" for name in experts_of("dense")]
        inputs += [f"query(q_{name}) tensor<float>(term{{}})" for name in experts_of("sparse")]
        inputs += [f"query(q_{name}) tensor<float>(asked{{}}, x[{widths[name]}])" for name in experts_of("multivector")]
        scores = {name: f"sum(query(q_{name}) * attribute({name}_vector))" for name in experts_of("dense")}
        scores |= {name: f"sum(query(q_{name}) * attribute({name}_terms))" for name in experts_of("sparse")}
        late_interaction = {
            expert: f"sum(reduce(sum(query(q_{expert}) * attribute({expert}_tokens), x), max, token), asked)"
            for expert in experts_of("multivector")
        }
        lines = ["  rank-profile moeir {", "    inputs {", *(f"      {line}" for line in inputs), "    }"]
        for name, expression in (scores | late_interaction).items():
            lines += [f"    function score_{name}() {{", f"      expression: {expression}", "    }"]
        first_phase = " + ".join(f"score_{name}" for name in scores or late_interaction)
        lines += ["    first-phase {", f"      expression: {first_phase}", "    }"]
        if scores and late_interaction:
            all_scores = " + ".join(f"score_{name}" for name in scores | late_interaction)
            lines += ["    second-phase {", f"      expression: {all_scores}", "      rerank-count: 1000", "    }"]
        summary = " ".join(f"score_{name}" for name in scores | late_interaction)
        return [*lines, f"    match-features: {summary}", "  }"]
