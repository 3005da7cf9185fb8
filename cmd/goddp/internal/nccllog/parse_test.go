package nccllog

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the verdicts into testdata")

// Each file of testdata holds the logs of all ranks of a communicator. The verdicts are in the file
// with the same name and the ending .json.
func TestVerdicts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has %d logs: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(Parse(string(text)).Verdicts(), "", "\t")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".txt") + ".json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// The logs of the ranks give the same verdicts whether each is parsed by itself, and the results merged, or
// all are one file.
func TestMergeOfRanks(t *testing.T) {
	text, err := os.ReadFile("testdata/roce.txt")
	if err != nil {
		t.Fatal(err)
	}
	ranks := map[string]string{} // by host:pid
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(line, ":", 3)
		ranks[parts[0]+parts[1]] += line
	}
	var logs []Log
	for _, part := range ranks {
		logs = append(logs, Parse(part))
	}
	one, err := json.Marshal(Parse(string(text)).Verdicts())
	if err != nil {
		t.Fatal(err)
	}
	merged, err := json.Marshal(Merge(logs).Verdicts())
	if err != nil || len(logs) < 2 || string(one) != string(merged) {
		t.Errorf("%d ranks: %v\n%s\nmerged\n%s", len(logs), err, one, merged)
	}
}

// A rank that is in no ring, or that the root of a tree does not reach, is named.
func TestIncompleteRingsAndTrees(t *testing.T) {
	v := Parse(`h:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0
h:1:1 [0] NCCL INFO Channel 00/02 : 0 1 3
h:1:1 [0] NCCL INFO Channel 01/02 : 0 1 2 3
h:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1
h:2:2 [1] NCCL INFO Trees [0] -1/-1/-1->1->0
h:3:3 [2] NCCL INFO Trees [0] 3/-1/-1->2->1
h:4:4 [3] NCCL INFO Trees [0] -1/-1/-1->3->2
`).Verdicts()
	want := "ring 0 lacks rank 2 of 4; tree 0 lacks ranks 2, 3 of 4"
	if got := strings.Join(v.Faults, "; "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A ring and a tree that NCCL's line is too short for are no faults.
func TestCutLines(t *testing.T) {
	const size = 400
	var text, ring strings.Builder
	for r := range size {
		fmt.Fprintf(&ring, " %3d", r)
	}
	fmt.Fprintf(&text, "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks %d nNodes 50 localRanks 8 localRank 0 MNNVL 0\n", size)
	fmt.Fprintf(&text, "h:1:1 [0] NCCL INFO Channel 00/01 :%s\n", ring.String()[:1000])
	var trees strings.Builder
	for channel := range 64 {
		fmt.Fprintf(&trees, "[%d] 1/-1/-1->0->-1 ", channel)
	}
	fmt.Fprintf(&text, "h:1:1 [0] NCCL INFO Trees %s\n", trees.String()[:1000])
	var sent bytes.Buffer // as between ranks
	if err := gob.NewEncoder(&sent).Encode(Parse(text.String())); err != nil {
		t.Fatal(err)
	}
	var l Log
	if err := gob.NewDecoder(&sent).Decode(&l); err != nil {
		t.Fatal(err)
	}
	if v := l.Verdicts(); v.Rings != 1 || v.Trees < 40 || v.Trees > 60 || v.Faults != nil {
		t.Errorf("got %+v", v)
	}
}
