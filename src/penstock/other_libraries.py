"""Names of other libraries that are tried on `ps` itself, and what to use instead."""

from penstock.other_names import names_of

_ARRAYS = "ps.Dataset.from_tensor_slices((images, labels))"
_LOADER = "ps.Dataset shuffles, maps and batches; ps.torch.loader(dataset) gives its batches as tensors"
_SPLIT = "shuffle(seed=..., reshuffle_each_iteration=False), then take(n) and skip(n)"

PACKAGE = {
    **names_of(
        "TensorFlow",
        {
            "distribute": "strategies are in ps itself, as ps.MirroredStrategy is",
            "experimental": "there is no experimental: its names are in ps and in ps.Dataset",
        },
    ),
    **names_of(
        "PyTorch",
        {
            "ConcatDataset": "first.concatenate(second)",
            "DataLoader": _LOADER,
            "DistributedSampler": "ps.torch.loader(dataset) gives each rank its rows",
            "IterableDataset": "ps.Dataset.from_generator(function)",
            "RandomSampler": "dataset.shuffle(seed=...)",
            "StatefulDataLoader": _LOADER,
            "Subset": "ps.Dataset.from_tensor_slices(indices).map(dataset.__getitem__)",
            "TensorDataset": _ARRAYS,
            "random_split": _SPLIT,
        },
    ),
    **names_of(
        "Grain",
        {
            "IndexSampler": "dataset.shuffle(seed=...), repeat() and shard(...)",
            "IterDataset": "ps.Dataset, which is read by index as long as its steps can be",
            "MapDataset": "ps.Dataset: ps.Dataset.from_source(source) takes a data source",
        },
    ),
    **names_of(
        "Hugging Face",
        {
            "concatenate_datasets": "first.concatenate(second)",
            "interleave_datasets": "ps.Dataset.sample_from_datasets(datasets, weights)",
            "load_dataset": "ps.ParquetDataset(files) and others; ps.Dataset.from_source(...) takes what it returns",
        },
    ),
    **names_of(
        "WebDataset",
        {
            "ShardWriter": 'dataset.save(directory, format="tar")',
            "WebDataset": "ps.TarDataset(files)",
            "WebLoader": _LOADER,
        },
    ),
    **names_of(
        "Ray",
        {
            "read_csv": "ps.CsvDataset(files)",
            "read_json": "ps.JsonLinesDataset(files)",
            "read_parquet": "ps.ParquetDataset(files)",
            "read_tfrecords": "ps.TFRecordDataset(files)",
        },
    ),
}
