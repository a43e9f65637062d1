"""`ps.text`: texts to tokens, and files of tokens."""

from penstock.formats.records.token_files import TokenFiles as TokenFiles
from penstock.text.tokenizing import tokenizer as tokenizer
