package tokenizer

import (
	"encoding/binary"
	"testing"
)

// charsmap makes SentencePiece's table of replacements. It places the children of each node of the trie in free
// places of an array of 64 Ki units.
func charsmap(replacements map[string]string) []byte {
	type node struct {
		children map[byte]*node
		value    int // -1: none
	}
	root := &node{children: map[byte]*node{}, value: -1}
	var texts []byte
	for from, to := range replacements {
		n := root
		for i := range len(from) {
			if n.children[from[i]] == nil {
				n.children[from[i]] = &node{children: map[byte]*node{}, value: -1}
			}
			n = n.children[from[i]]
		}
		n.value = len(texts)
		texts = append(append(texts, to...), 0)
	}
	units := make([]uint32, 1<<16)
	next := uint32(0x100)
	var place func(n *node, at, label uint32)
	place = func(n *node, at, label uint32) {
		base := next // the children of a node share a block of 256 units
		next += 0x100
		units[at] = (at^base)<<10 | label
		if n.value >= 0 {
			units[at] |= 1 << 8
			units[base] = 1<<31 | uint32(n.value)
		}
		for b, child := range n.children {
			place(child, base^uint32(b), uint32(b))
		}
	}
	place(root, 0, 0)
	table := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		table = binary.LittleEndian.AppendUint32(table, u)
	}
	return append(table, texts...)
}

func TestPrecompiled(t *testing.T) {
	normalize, err := precompiled(charsmap(map[string]string{"ﬁ": "fi", "①": "1", "A\u030a": "Å", "A": "a", "\n": " ", "\u200b": ""}))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "", "A\u030aA": "Åa", "x①ﬁ\ny\u200bz": "x1fi yz", "北": "北", "A\xff": "a\xff"} {
		if got := normalize(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	for _, table := range [][]byte{{1, 0}, {8, 0, 0, 0, 1}} {
		if _, err := precompiled(table); err == nil {
			t.Errorf("the table %v has no error, want one", table)
		}
	}
}

// As in Hugging Face's library, control characters vanish, also if they are white space, and unassigned ones stay.
func TestBertNormalizer(t *testing.T) {
	if got, want := bertNormalizer(component{})("A\u0085b\vc\u200b\td\u00a0e\u0378"), "abc d e\u0378"; got != want {
		t.Errorf("the text becomes %q, want %q", got, want)
	}
}
