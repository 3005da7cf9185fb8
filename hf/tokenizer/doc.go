// Package tokenizer reads the tokenizers of Hugging Face's hub, and turns text into tokens and back.
//
//	tok, err := tokenizer.Load("Llama-3.1-8B")
//	...
//	tokens := tok.Encode("Hello", nil)                                            // with <|begin_of_text|>
//	tokens = tok.Encode(chat, &tokenizer.EncodeOptions{NoSpecialTokens: true})    // a template wrote them already
//	tokens = tok.Encode(stranger, &tokenizer.EncodeOptions{PlainText: true})      // "<|eot_id|>" is text
//	text := tok.Decode(tokens, &tokenizer.DecodeOptions{SkipSpecialTokens: true})
//
// A [Stream] decodes the tokens of a generation as they come, and holds back a character of which bytes are missing.
// [Tokenizer.EncodeAt] says which tokens belong to a part of a text, for a loss that leaves out the prompt; package
// chat uses it.
//
// # Files
//
// [Load] reads tokenizer.json. From tokenizer_config.json and special_tokens_map.json it takes the tokens
// [Tokenizer.BOS], [Tokenizer.EOS] and [Tokenizer.Pad], and from generation_config.json the tokens that end a
// generation, [Tokenizer.Stop]. If the files of the tokenizer name no EOS, as GPT-2's, it is the eos_token_id of
// generation_config.json or config.json. add_bos_token and add_eos_token count for the class LlamaTokenizer, as in
// transformers. A folder that has only tokenizer.model, SentencePiece's file, must be converted:
// transformers' AutoTokenizer reads it, and its save_pretrained writes tokenizer.json.
//
// # What tokenizers may have
//
//	models           byte pair encoding (of bytes, and of characters with bytes for unknown ones), Unigram, WordPiece
//	normalizers      NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, BertNormalizer, Precompiled
//	pre-tokenizers   ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, CharDelimiterSplit, Punctuation, Digits,
//	                 BertPreTokenizer
//	post-processors  TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing
//	decoders         ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece
//
// and sequences of them. Load returns an error that names any other. Dropout, truncation and padding of the file are
// ignored. The meaning of each is that of Hugging Face's library tokenizers, except two: Precompiled replaces the
// longest match at each place, as SentencePiece does, and not whole grapheme clusters; and Decode never removes
// spaces before punctuation, so that text of a byte-level vocabulary survives a round trip.
//
// # Speed
//
// The methods may be called from several goroutines, which is how a large text is encoded fast. Short pieces of text
// whose tokens are known are not merged again. docs/results/tokenizers.md has figures.
package tokenizer
