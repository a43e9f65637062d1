"""One preprocessing function for TensorFlow Transform and for `ps.transform`: the names are the same in both."""

ROWS = 40


def rows():
    """Rows with everything that analyzers meet: NaN, equal values, strings that repeat, rows of unequal length."""
    found = []
    for n in range(ROWS):
        count = n % 4
        found.append(
            {
                "x": (n * 37 % 101) / 8 - 5.0,
                "y": ((n * n * 13) % 97) / 3.0,
                "i": (n * 7) % 11 - 3,
                "m": float("nan") if n % 5 == 0 else float(n % 7),
                "same": 2.5,
                "tail": (1.0 if n % 2 else -1.3) * 1.35 ** (n * 11 % 23),
                "v": [float(n % 3), float(n % 5) * 0.5, float((n * 3) % 7)],
                "w": ["b", "a", "dd", "a", "c", "", "é", "c"][n * 3 % 8],
                "key": ["k1", "k2", "k3"][n * n % 3],
                "weight": float(n % 4) + 0.5,
                "label": (n * n // 7) % 3,
                "tokens": [["the", "cat", "sat", "the", "mat", "a"][(n * k + n) % 6] for k in range(1, count + 1)],
                "numbers": [float(n * k % 9) - 2 for k in range(1, count + 1)],
                "labels": [label for label in range(4) if (n * 5 + label * label) % 3 == 0],
                "gap_values": [float(n * k % 7) - 1 for k in range(count)],
                "gap_indices": [k * 2 - (n + k) % 2 for k in range(1, count + 1)],
                "tails": [sign * 1.3 ** (n * step % 23) for sign, step in ((1 - 2 * (n % 2), 11), (1, 7), (-1, 5))],
                "lines": ["two words", "a\nline", "", "plain", "two words"][n % 5],
                "infinite": float("inf") if n % 13 == 5 else float(n * 7 % 19),
                "both": {3: float("inf"), 11: float("-inf"), 20: float("nan")}.get(n, float(n * 5 % 17)),
                "nothing": float("nan"),
            }
        )
    return found


def first_letter(token):
    """The key of a token, for a vocabulary that covers all keys."""
    return token[:1]


def preprocess(t, c, spread, project, float32, float64, cast, *, experimental, backwards, dense):
    """Outputs by name.

    `t` is the module, `spread` gives an analyzer's result to all rows, `project` multiplies, `cast` makes float32,
    `experimental` is where approximate vocabularies and frequencies of documents are, `backwards` looks tokens up in a
    vocabulary from its end, and `dense` makes an array of what a function does with the rows that have gaps.
    """
    x, y, i, v, w, key = (c[name] for name in ("x", "y", "i", "v", "w", "key"))
    numbers, tokens, weight, m, tail = (c[name] for name in ("numbers", "tokens", "weight", "m", "tail"))
    indices = t.compute_and_apply_vocabulary(tokens, vocab_filename="tokens")
    terms, weights = t.tfidf(indices, 6)
    _, rough = t.tfidf(indices, 6, smooth=False)
    counts, borders = t.histogram(x, 5)
    left, right = t.tukey_h_params(tail)
    return {
        "scale_to_0_1": t.scale_to_0_1(x),
        "scale_to_0_1_int": t.scale_to_0_1(i),
        "scale_to_0_1_same": t.scale_to_0_1(c["same"]),
        "scale_to_0_1_ragged": t.scale_to_0_1(numbers),
        "scale_to_0_1_elementwise": t.scale_to_0_1(v, elementwise=True),
        "scale_by_min_max": t.scale_by_min_max(y, -1.0, 3.0),
        "scale_by_min_max_per_key": t.scale_by_min_max_per_key(x, key, 0.0, 2.0),
        "scale_to_0_1_per_key": t.scale_to_0_1_per_key(x, key),
        "scale_to_z_score": t.scale_to_z_score(x),
        "scale_to_z_score_int": t.scale_to_z_score(i),
        "scale_to_z_score_nan": t.scale_to_z_score(m),
        "scale_to_z_score_same": t.scale_to_z_score(c["same"]),
        "scale_to_z_score_ragged": t.scale_to_z_score(numbers),
        "scale_to_z_score_elementwise": t.scale_to_z_score(v, elementwise=True),
        "scale_to_z_score_per_key": t.scale_to_z_score_per_key(x, key),
        "scale_to_z_score_per_key_ragged": t.scale_to_z_score_per_key(numbers, key),
        "scale_to_gaussian": t.scale_to_gaussian(tail),
        "tukey_location": x * 0 + t.tukey_location(tail),
        "tukey_scale": x * 0 + t.tukey_scale(tail),
        "tukey_left": x * 0 + left,
        "tukey_right": x * 0 + right,
        "min": i * 0 + t.min(i),
        "max": x * 0 + t.max(x),
        "max_elementwise": v * 0 + t.max(v, reduce_instance_dims=False),
        "sum": i * 0 + t.sum(i),
        "sum_ragged": x * 0 + t.sum(numbers),
        "size": i * 0 + t.size(x),
        "size_ragged": i * 0 + t.size(tokens),
        "mean": x * 0 + t.mean(x),
        "mean_nan": x * 0 + t.mean(m),
        "var": x * 0 + t.var(x),
        "var_elementwise": v * 0 + t.var(v, reduce_instance_dims=False),
        "bucketize": t.bucketize(x, 4),
        "bucketize_int": t.bucketize(i, 3),
        "bucketize_ragged": t.bucketize(numbers, 3),
        "bucketize_weighted": t.bucketize(x, 4, weights=weight),
        "bucketize_elementwise": t.bucketize(v, 2, elementwise=True),
        "bucketize_per_key": t.bucketize_per_key(x, key, 3),
        "bucketize_of_z_score": t.bucketize(t.scale_to_z_score(x), 3),
        "quantiles": spread(x, t.quantiles(x, 5, 0.01)),
        "quantiles_weighted": spread(x, t.quantiles(x, 3, 0.01, weights=weight)),
        "apply_buckets": t.apply_buckets(x, [[-2.0, 0.0, 3.0]]),
        "apply_buckets_with_interpolation": t.apply_buckets_with_interpolation(x, [[-2.0, 0.0, 3.0]]),
        "interpolation_nan": t.apply_buckets_with_interpolation(m, [[1.0, 3.0]]),
        "histogram": spread(x, counts),
        "histogram_borders": spread(x, borders),
        "estimated_probability_density": t.estimated_probability_density(x, boundaries=4),
        "density_of_categories": t.estimated_probability_density(key, categorical=True),
        "compute_and_apply_vocabulary": t.compute_and_apply_vocabulary(w, vocab_filename="words"),
        "vocabulary_top_k": t.compute_and_apply_vocabulary(w, top_k=3, vocab_filename="top"),
        "vocabulary_threshold": t.compute_and_apply_vocabulary(w, frequency_threshold=5, vocab_filename="threshold"),
        "vocabulary_oov": t.compute_and_apply_vocabulary(w, top_k=2, num_oov_buckets=3, vocab_filename="oov"),
        "vocabulary_default": t.compute_and_apply_vocabulary(w, top_k=2, default_value=-9, vocab_filename="default"),
        "vocabulary_weighted": t.compute_and_apply_vocabulary(w, weights=weight, vocab_filename="weighted"),
        "vocabulary_int": t.compute_and_apply_vocabulary(i, vocab_filename="integers"),
        "vocabulary_shuffled": t.compute_and_apply_vocabulary(w, fingerprint_shuffle=True, vocab_filename="shuffled"),
        "vocabulary_reserved": t.compute_and_apply_vocabulary(
            w, reserved_tokens=["<pad>", "a"], vocab_filename="reserved"
        ),
        "vocabulary_frequency": t.compute_and_apply_vocabulary(w, store_frequency=True, vocab_filename="frequency"),
        "vocabulary_labels": t.compute_and_apply_vocabulary(
            w, labels=c["label"], min_diff_from_avg=0, vocab_filename="labels"
        ),
        "vocabulary_labels_weighted": t.compute_and_apply_vocabulary(
            w, labels=c["label"], weights=weight, vocab_filename="labels_weighted"
        ),
        "vocabulary_labels_adjusted": t.compute_and_apply_vocabulary(
            w, labels=c["label"], use_adjusted_mutual_info=True, min_diff_from_avg=0, top_k=4, vocab_filename="adjusted"
        ),
        "vocabulary_labels_ragged": t.compute_and_apply_vocabulary(
            t.deduplicate_tensor_per_row(tokens), labels=c["label"], min_diff_from_avg=0, vocab_filename="labels_ragged"
        ),
        "vocabulary_reserved_top_k": t.compute_and_apply_vocabulary(
            w, reserved_tokens=["<pad>", "a"], top_k=3, vocab_filename="reserved_top"
        ),
        "vocabulary_labels_of_rows": t.compute_and_apply_vocabulary(
            w, labels=c["labels"], min_diff_from_avg=0, vocab_filename="labels_of_rows"
        ),
        "vocabulary_labels_of_rows_weighted": t.compute_and_apply_vocabulary(
            w, labels=c["labels"], weights=weight, min_diff_from_avg=0, vocab_filename="labels_of_rows_weighted"
        ),
        "vocabulary_covered": t.compute_and_apply_vocabulary(
            tokens, top_k=2, key_fn=first_letter, coverage_top_k=1, vocab_filename="covered"
        ),
        "vocabulary_covered_threshold": t.compute_and_apply_vocabulary(
            tokens,
            top_k=1,
            key_fn=first_letter,
            coverage_frequency_threshold=8,
            store_frequency=True,
            vocab_filename="covered_threshold",
        ),
        "approximate_vocabulary": experimental.compute_and_apply_approximate_vocabulary(
            w, top_k=20, num_oov_buckets=1, vocab_filename="approximate"
        ),
        "lookup_fn": t.apply_vocabulary(w, t.vocabulary(w, vocab_filename="backwards"), lookup_fn=backwards),
        "scale_by_min_max_per_key_elementwise": t.scale_by_min_max_per_key(c["v"], key, -1.0, 1.0, elementwise=True),
        "scale_to_z_score_per_key_elementwise": t.scale_to_z_score_per_key(c["v"], key, elementwise=True),
        "to_dense_with_gaps": dense(lambda values: values),
        "scaled_with_gaps": dense(t.scale_to_0_1),
        "vocabulary_ragged": indices,
        "hash_strings": t.hash_strings(w, 7),
        "hash_strings_strong": t.hash_strings(w, 7, key=[123, 456]),
        "hash_strings_ragged": t.hash_strings(tokens, 5),
        "ngrams": t.ngrams(tokens, (1, 2), " "),
        "bag_of_words": t.bag_of_words(tokens, (1, 2), "-"),
        "deduplicate": t.deduplicate_tensor_per_row(tokens),
        "word_count": t.word_count(tokens),
        "tfidf_terms": terms,
        "tfidf_weights": weights,
        "tfidf_rough": rough,
        "covariance": project(v, t.covariance(v, float32)),
        "pca": project(v, t.pca(v, 2, float32)),
        "to_dense": t.sparse_tensor_to_dense_with_shape(numbers, [None, 4], -1.0),
        **more(t, c, spread, float64, cast, experimental, indices),
        **infinite(t, c, spread),
    }


def more(t, c, spread, float64, cast, experimental, indices):
    """What the other outputs leave out: counts of keys, positions of elements, rows of unequal length, dtypes."""
    x, i, v, key, numbers, tails = (c[name] for name in ("x", "i", "v", "key", "numbers", "tails"))
    keys, counts = t.count_per_key(key)
    shares, categories = t.histogram(key, categorical=True)
    left, right = t.tukey_h_params(tails, reduce_instance_dims=False)
    buckets = t.get_num_buckets_for_transformed_feature(indices)
    return {
        "count_per_key": spread(x, counts),
        "keys": spread(x, t.hash_strings(keys, 1000)),
        "histogram_of_categories": spread(x, shares),
        "categories": spread(x, t.hash_strings(categories, 1000)),
        "min_elementwise": v * 0 + t.min(v, reduce_instance_dims=False),
        "sum_elementwise": v * 0 + t.sum(v, reduce_instance_dims=False),
        "mean_elementwise": v * 0 + t.mean(v, reduce_instance_dims=False),
        "min_ragged": x * 0 + t.min(numbers),
        "mean_ragged": x * 0 + t.mean(numbers),
        "mean_int": x * 0 + t.mean(i),
        "var_int": x * 0 + t.var(i),
        "quantiles_elementwise": v[:, :, None] * 0 + t.quantiles(v, 3, 0.01, reduce_instance_dims=False),
        "tukey_location_elementwise": tails * 0 + t.tukey_location(tails, reduce_instance_dims=False),
        "tukey_scale_elementwise": tails * 0 + t.tukey_scale(tails, reduce_instance_dims=False),
        "tukey_left_elementwise": tails * 0 + left,
        "tukey_right_elementwise": tails * 0 + right,
        "scale_to_gaussian_elementwise": t.scale_to_gaussian(tails, elementwise=True),
        "scale_to_gaussian_ragged": t.scale_to_gaussian(numbers),
        "scale_by_min_max_elementwise": t.scale_by_min_max(v, -1.0, 1.0, elementwise=True),
        "scale_to_0_1_per_key_ragged": t.scale_to_0_1_per_key(numbers, key),
        "scale_to_z_score_float64": cast(t.scale_to_z_score(i, output_dtype=float64)),
        "scale_to_z_score_per_key_float64": cast(t.scale_to_z_score_per_key(i, key, output_dtype=float64)),
        "bucketize_per_key_weighted": t.bucketize_per_key(x, key, 3, weights=c["weight"]),
        "apply_buckets_ragged": t.apply_buckets(numbers, [[-1.0, 2.0]]),
        "apply_buckets_int": t.apply_buckets(i, [[-1, 2]]),
        "interpolation_ragged": t.apply_buckets_with_interpolation(numbers, [[-1.0, 2.0, 5.0]]),
        "density_of_ten_bins": t.estimated_probability_density(x),
        "document_frequency": experimental.document_frequency(indices, 6),
        "idf": experimental.idf(indices, 6),
        "idf_rough": experimental.idf(indices, 6, smooth=False, add_baseline=False),
        "tfidf_of_all_indices": t.tfidf(indices, buckets)[1],
        "number_of_indices": i * 0 + buckets,
        "number_of_buckets": i * 0 + t.get_num_buckets_for_transformed_feature(t.bucketize(x, 4)),
        "vocabulary_in_records": t.compute_and_apply_vocabulary(
            c["lines"], file_format="tfrecord_gzip", vocab_filename="records"
        ),
        "vocabulary_in_records_with_frequency": t.compute_and_apply_vocabulary(
            c["lines"], file_format="tfrecord_gzip", store_frequency=True, vocab_filename="records_frequency"
        ),
        "vocabulary_of_lines": t.compute_and_apply_vocabulary(c["lines"], vocab_filename="lines"),
    }


def infinite(t, c, spread):
    """What is learned of infinite numbers, of both signs, and of nothing but NaN."""
    found = {}
    for name in ("infinite", "both", "nothing"):
        x, here = c[name], c["x"] * 0
        found |= {
            f"{name}_scale_to_0_1": t.scale_to_0_1(x),
            f"{name}_scale_to_z_score": t.scale_to_z_score(x),
            f"{name}_scale_to_z_score_per_key": t.scale_to_z_score_per_key(x, c["key"]),
            f"{name}_bucketize": t.bucketize(x, 3),
            f"{name}_min": here + t.min(x),
            f"{name}_max": here + t.max(x),
            f"{name}_sum": here + t.sum(x),
            f"{name}_mean": here + t.mean(x),
            f"{name}_var": here + t.var(x),
            f"{name}_quantiles": spread(here, t.quantiles(x, 4, 0.01)),
            f"{name}_histogram": spread(here, t.histogram(x, [0.0, 5.0, 9.0])[0]),
            f"{name}_density": t.estimated_probability_density(x, boundaries=[0.0, 5.0, 9.0]),
            f"{name}_interpolation": t.apply_buckets_with_interpolation(x, [[2.0, 9.0]]),
        }
    # Of NaN, the least and the most of a key depend on the order of rows in tft.
    found["infinite_scale_to_0_1_per_key"] = t.scale_to_0_1_per_key(c["infinite"], c["key"])
    return found


VOCABULARIES = ["words", "top", "threshold", "oov", "default", "weighted", "integers", "shuffled", "reserved"]
VOCABULARIES += ["frequency", "tokens", "labels", "labels_weighted", "adjusted", "labels_ragged", "reserved_top"]
VOCABULARIES += ["labels_of_rows", "labels_of_rows_weighted", "covered", "covered_threshold"]
VOCABULARIES += ["approximate", "backwards", "records", "records_frequency", "lines"]
