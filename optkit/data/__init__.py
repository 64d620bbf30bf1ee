"""Samples: read, made into feeds, kept on disk, and what user code read to make them.

reading     which reader reads a path, batches     rows      of text, JSON lines, CSV, Parquet
text        texts as feeds, in pairs, by word      tokens    tokenizers
streaming   one long text, part by part            classes   which number a label has
packing     ids as rectangles, windows             language  what a language model has to predict
images      pictures of a folder                   audio     recordings of a folder
folders     files by class, in a spread order      arrays    .npz, .safetensors
labelled    any of them with a class each          sequences inputs that follow from others
checking    what a source yields fits the model    spool     samples on disk
reads       what user code read
"""
