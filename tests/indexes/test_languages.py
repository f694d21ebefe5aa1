"""Terms of languages: the stems of PyStemmer for words that are written here, and pairs of characters."""

import unicodedata

import pytest
import Stemmer

from moeir.errors import UsageError
from moeir.indexes.analyzer import LANGUAGES, open_analyzer, read_stop_words
from moeir.indexes.bm25 import Bm25
from moeir.indexes.lucene import LANGUAGE_CODES
from tests.indexes.engine_checks import open_index

WITHOUT_STOP_WORDS = {"esperanto", "polish", "sesotho", "yiddish"}
SENTENCES = {  # with the words that are neither punctuation nor stop words
    "arabic": ("قرأ الأطفال الكتب في المدرسة.", "قرأ الأطفال الكتب المدرسة"),
    "armenian": ("Երեխաները դպրոցում գրքեր էին կարդում։", "երեխաները դպրոցում գրքեր կարդում"),
    "basque": ("Haurrek liburuak irakurtzen zituzten eskolan.", "haurrek liburuak irakurtzen zituzten eskolan"),
    "catalan": ("Les nenes cantaven als jardins de Barcelona.", "nenes cantaven jardins barcelona"),
    "czech": ("Děti četly knihy ve školách.", "děti četly knihy školách"),
    "danish": ("Børnene læste bøgerne på skolen.", "børnene læste bøgerne skolen"),
    "dutch": ("De kinderen lezen een boek in de tuin.", "kinderen lezen boek tuin"),
    "esperanto": ("Katoj dormas en domoj.", "katoj dormas en domoj"),
    "estonian": ("Lapsed lugesid koolis raamatuid.", "lapsed lugesid koolis raamatuid"),
    "finnish": ("Lapset lukivat koulussa ja talossa.", "lapset lukivat koulussa talossa"),
    "french": ("Les enfants lisaient dans l'école d’un village.", "enfants lisaient école village"),
    "german": ("Die Häuser der alten Städte stehen an der Straße.", "häuser alten städte stehen straße"),
    "greek": ("Τα παιδιά διάβαζαν από το βιβλίο, ΟΤΑΝ ΟΙ ΑΓΕΛΑΔΕΣ έβοσκαν.", "παιδιά διάβαζαν βιβλίο οταν αγελαδες έβοσκαν"),
    "hindi": ("बच्चे स्कूल में किताबें पढ़ रहे थे।", "बच्चे स्कूल किताबें पढ़"),
    "hungarian": ("A gyerekek az iskolában könyveket olvastak.", "gyerekek iskolában könyveket olvastak"),
    "indonesian": ("Anak membaca buku di sekolah.", "anak membaca buku sekolah"),
    "irish": ("Léann na páistí leabhair sa scoil.", "léann páistí leabhair scoil"),
    "italian": ("L'amico dell’architetto abita nell'ultima casa.", "amico architetto abita ultima casa"),
    "lithuanian": ("Vaikai mokykloje skaitė knygas ir laikraščius.", "vaikai mokykloje skaitė knygas laikraščius"),
    "nepali": ("केटाकेटीहरू विद्यालयमा किताब पढ्दै थिए।", "केटाकेटीहरू विद्यालयमा किताब पढ्दै"),
    "norwegian": ("Barna leste bøkene på skolen.", "barna leste bøkene skolen"),
    "persian": ("کاربران پرونده‌ها را این بار یکی یکی ذخیره کردند ۱۲۳.", "کاربران پرونده‌ها ذخیره 123"),
    "polish": ("Koty śpią w starych domach.", "koty śpią w starych domach"),
    "portuguese": ("Os cães dos capitães viviam nas cidades.", "cães capitães viviam cidades"),
    "romanian": ("Copiii citeau cărțile în școală și învățau.", "copiii citeau cărțile școală învățau"),
    "russian": ("Дети читали книги в школе.", "дети читали книги школе"),
    "serbian": ("Деца су читала књиге.", "деца читала књиге"),
    "sesotho": ("Batho ba bala dibuka sekolong.", "batho ba bala dibuka sekolong"),
    "spanish": ("Las niñas cantaban canciones en los jardines.", "niñas cantaban canciones jardines"),
    "swedish": ("Barnen läste böckerna på åkrarna.", "barnen läste böckerna åkrarna"),
    "tamil": ("குழந்தைகள் பள்ளியில் படித்தார்கள்.", "குழந்தைகள் பள்ளியில் படித்தார்கள்"),
    "turkish": ("IŞIK ve İPEK, Ankara’dan gelen çocuklar.", "ışık ipek ankara'dan gelen çocuklar"),
    "yiddish": ("די קינדער לייענען ביכער.", "די קינדער לייענען ביכער"),
}


def test_every_language_of_snowball_is_there():
    assert {*LANGUAGES} == {*SENTENCES, "english", "cjk"}
    assert {*LANGUAGES} - {"cjk"} == {*Stemmer.algorithms()} - {"porter", "dutch_porter"}
    assert LANGUAGE_CODES.keys() <= {*LANGUAGES}


@pytest.mark.parametrize("language", sorted(SENTENCES))
def test_terms_are_snowballs_stems_of_the_words_that_are_no_stop_words(language):
    sentence, words = SENTENCES[language]
    assert open_analyzer(language, "none").terms(sentence) == words.split()
    assert open_analyzer(language).terms(sentence) == [stem for stem in Stemmer.Stemmer(language).stemWords(words.split()) if stem]
    assert (read_stop_words(language, "lucene") == frozenset()) is (language in WITHOUT_STOP_WORDS)


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("german", "HAEUSER Häuser Haus Strasse Straße", "haus haus haus strass strass"),
        ("french", "cheval chevaux, L'eau d’eau", "cheval cheval eau eau"),
        ("italian", "acqua dell'acqua L’acqua", "acqua acqua acqua"),
        ("catalan", "aigua d’aigua", "aigu d aigu"),
        ("greek", "σπίτι ΣΠΙΤΙΑ οδός ΟΔΟΣ", "σπιτ σπιτ οδ οδ"),
        ("turkish", "Ankara ankara'da ANKARA’DA KİTAPLAR kitap", "ankar ankar ankar kitap kitap"),
        ("romanian", "stații staţii și şi", "staț staț"),
        ("persian", "کتاب كتاب کتاب‌ها", "کتاب کتاب کتاب"),
        ("arabic", "الكتاب كتاب ٣٤ 34", "كتاب كتاب 34 34"),
        ("russian", "книги книгами книга", "книг книг книг"),
        ("czech", "škola školách", "škol škol"),
    ],
)
def test_forms_of_a_word_have_one_term(language, text, terms):
    assert open_analyzer(language).terms(text) == terms.split()


def test_letters_with_combined_accents_are_those_of_one_character():
    analyzer = open_analyzer("spanish")
    assert analyzer.terms(unicodedata.normalize("NFD", "Los pingüinos en España")) == analyzer.terms("pingüinos España")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("我是中国人，我爱北京。", "我是 是中 中国 国人 我爱 爱北 北京"),
        ("東京都のWiFiはコンピ。ｶﾀｶﾅ、ﾊﾟｿｺﾝ、ＡＢＣ１２３。", "東京 京都 都の wifi はコ コン ンピ カタ タカ カナ パソ ソコ コン abc123"),
        ("한국어 텍스트를 검색. a반.", "한국 국어 텍스 스트 트를 검색 a반"),
        ("The cat and the 猫 live in 大阪. 3匹。", "cat 猫 live 大阪 3 匹"),
        ("𠮷野家で 漢", "𠮷野 野家 家で 漢"),
        (" 漢字", "漢字"),
    ],
)
def test_chinese_japanese_and_korean_are_pairs_of_characters(text, terms):
    assert open_analyzer("cjk").terms(text) == terms.split()


def test_a_long_run_of_chinese_is_paired_in_linear_time():
    assert len(open_analyzer("cjk").terms("漢字" * 10**5)) == 2 * 10**5 - 1


def test_options_choose_the_stemmer_and_the_stop_words():
    text = "Die Häuser"
    assert open_analyzer("german", "german", "none").terms(text) == ["die", "haus"]
    assert open_analyzer("german", "porter").terms(text) == [Stemmer.Stemmer("porter").stemWord("häuser")]
    assert open_analyzer("dutch", "dutch").terms("mogelijkheden") != open_analyzer("dutch", "dutch_porter").terms("mogelijkheden")
    assert open_analyzer("cjk", stop_words="none").terms("The 猫") == ["the", "猫"]
    assert open_analyzer("english", "german").terms("The cat's") == ["cat"]


@pytest.mark.parametrize("language", ["english", "german", "cjk"])
def test_a_text_of_ascii_alone_is_cut_as_any_other(language):
    analyzer, text = open_analyzer(language), "Foo_bar 3.14 e-mail U.S.A. x" + "y" * 300
    assert analyzer.terms(text) == analyzer.terms(text + " \N{EM DASH}")


def test_an_unknown_language_is_refused_with_all_that_are_there():
    with pytest.raises(UsageError) as refusal:
        open_analyzer("de")
    assert str(refusal.value) == f"bm25: language 'de' is unknown; known: {', '.join(LANGUAGES)}"


def test_an_index_is_searched_in_its_language():
    index = open_index(Bm25(language="german"), ["Die Häuser der Stadt", "Ein Haus am Fluss", "Das Gras"])
    assert (index.language, index.stemmer, index.stop_words) == ("german", "german", "lucene")
    assert index.search(["HAEUSERN", "die"], 2)[0].tolist() == [[1, 0], [-1, -1]]
