from moeir.fusion import tuning


def test_the_best_alpha_is_the_first_of_equals_and_other_options_stay():
    scored = []

    def means(methods):
        scored.extend(methods)
        return [0.5 if method.endswith(("alpha=0.4", "alpha=0.6")) else 0.1 for method in methods]

    tuned = tuning.tune_method("hybrid:depth=1", "0.2:0.8:0.2", means)
    assert (tuned.alpha, tuned.method) == ("0.4", "hybrid:depth=1,alpha=0.4")
    assert list(tuned.means) == ["0.2", "0.4", "0.6", "0.8"] and scored == [f"hybrid:depth=1,alpha={value}" for value in tuned.means]


def test_without_a_grid_a_method_has_its_own():
    tuned = tuning.tune_method("interpolation", None, lambda methods: [float(method.partition("=")[2]) for method in methods])
    assert (tuned.alpha, len(tuned.means)) == ("1.00", 21)
