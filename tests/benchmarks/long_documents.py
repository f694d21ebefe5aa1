"""Join the paragraphs of each article of SQuAD to long documents: `python -m tests.benchmarks.long_documents SQUAD OUTPUT --words 1000`.

SQUAD is in BEIR's layout (corpus.jsonl.gz, queries.jsonl.gz, qrels/dev.tsv.gz), its corpus in the order of the articles. A document takes
paragraphs that follow one another until it has as many words; what an article has left after that is a document of its own.
Writes corpus.jsonl, queries.jsonl and qrels/dev.tsv: a question's document is the one with its paragraph.
"""

from collections.abc import Iterator

from moeir.records import qrels, texts
from tests.benchmarks.rounds import make_parser


def join_paragraphs(paragraphs: list[texts.Text], words: int) -> Iterator[list[texts.Text]]:
    """Groups of paragraphs with one title, in order, each closed when it has as many words."""
    group: list[texts.Text] = []
    for paragraph in paragraphs:
        if group and (paragraph.title != group[0].title or sum(len(own.text.split()) for own in group) >= words):
            yield group
            group = []
        group.append(paragraph)
    if group:
        yield group


def main() -> None:
    """Write the collection and print how long its documents are."""
    args = make_parser(__doc__, ("squad", "output"), words=1000).parse_args()
    (args.output / "qrels").mkdir(parents=True, exist_ok=True)
    document_of, documents = dict[str, str](), list[texts.Text]()
    for number, group in enumerate(join_paragraphs(list(texts.read_texts(args.squad / "corpus.jsonl.gz")), args.words)):
        document_of |= {paragraph.id: f"document-{number}" for paragraph in group}
        documents.append(texts.Text(f"document-{number}", "\n".join(paragraph.text for paragraph in group), group[0].title))
    texts.write_texts(documents, args.output / "corpus.jsonl")
    judged = qrels.read_qrels(args.squad / "qrels" / "dev.tsv.gz")
    joined = {query: {document_of[paragraph]: grade for paragraph, grade in grades.items()} for query, grades in judged.items()}
    qrels.write_qrels(joined, args.output / "qrels" / "dev.tsv")
    questions = (text for text in texts.read_texts(args.squad / "queries.jsonl.gz") if text.id in joined)
    texts.write_texts(questions, args.output / "queries.jsonl")
    lengths = sorted(len(document.text.split()) for document in documents)
    print(f"{len(documents):,} documents of {lengths[0]:,} to {lengths[-1]:,} words, half of them over {lengths[len(lengths) // 2]:,}")


if __name__ == "__main__":
    main()
