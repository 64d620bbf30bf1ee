"""Samples: reading them, converting them to feeds, storing them on disk.

reading     which reader reads a path, batches     rows      of text, JSON lines, CSV, Parquet
text        texts as feeds, in pairs, by word      tokens    tokenizers
streaming   one long text, part by part            classes   the number of a label
packing     blocks of ids, padding, windows        language  targets of a language model
images      pictures of a folder                   audio     recordings of a folder
folders     files by class, in a mixed order       arrays    .npz, .npy, .safetensors
labelled    samples with one class each            sequences inputs that follow from others
checking    whether samples fit the model          spool     samples on disk
"""
