package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/data"
)

// The lengths of the documents are those of Stanford Alpaca's 52,002 examples with their prompt: logarithmically normal,
// from 60 tokens on, and cut at 512, as Alpaca was trained. The two numbers fit the published histogram
// (github.com/tloen/alpaca-lora, lengths.ipynb): 81.8% below 184.5 tokens, 97.6% below 309 and 99.5% below 433.5.
const (
	alpaca         = 52002
	logMean        = 4.785 // the median is 120 tokens
	logStd         = 0.477
	fewest, most   = 60, 512
	paddedMultiple = 32 // of the lengths of padded rows, so that steps have few shapes to capture
)

func documentLengths() []int {
	r := rand.New(rand.NewPCG(1, 1))
	var lengths []int
	for len(lengths) < alpaca {
		if n := math.Exp(logMean + logStd*r.NormFloat64()); n >= fewest {
			lengths = append(lengths, min(int(n), most))
		}
	}
	return lengths
}

// openDocuments returns a loader of documents of random tokens, all of which are labels.
func openDocuments(pg *comm.ProcessGroup) (*data.Loader, error) {
	o := &data.DocumentsOptions{Pack: *documents == "packed", Multiple: paddedMultiple}
	if !o.Pack && *documents != "padded" {
		return nil, fmt.Errorf("--documents %s: want padded or packed", *documents)
	}
	dir, err := os.MkdirTemp("", "documents")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var lines bytes.Buffer
	for _, n := range documentLengths() {
		fmt.Fprintf(&lines, "{\"text\": \"%d\"}\n", n)
	}
	file := filepath.Join(dir, "lengths.jsonl")
	if err := os.WriteFile(file, lines.Bytes(), 0o666); err != nil {
		return nil, err
	}
	encode := func(d *data.Document) (tokens []int, labels []bool, err error) {
		n, err := strconv.Atoi(d.Text)
		for range n {
			tokens, labels = append(tokens, rand.IntN(*vocab)), append(labels, true)
		}
		return tokens, labels, err
	}
	set, err := data.OpenDocuments(file, *length, encode, o)
	if err != nil {
		return nil, err
	}
	return data.NewLoader(set, pg, &data.LoaderOptions{Batch: *rows, Shuffle: true})
}
