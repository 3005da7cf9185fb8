package progress_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/goddp/goddp/progress"
)

// A run of four steps reports its loss every second step, to a person and to a file.
func Example() {
	dir, err := os.MkdirTemp("", "progress")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "run.jsonl")
	rank := 0
	meter, err := progress.New(rank, &progress.Options{Steps: 4, Every: 2, Out: io.Discard, File: file})
	if err != nil {
		fmt.Println(err)
		return
	}
	for step := range 4 {
		if meter.Step(32) {
			meter.Log(progress.V("loss", 1/float64(step+1)))
		}
	}
	if err := meter.Close(); err != nil {
		fmt.Println(err)
		return
	}
	text, err := os.ReadFile(file)
	fmt.Println(strings.Count(string(text), `"loss":`), "losses in the file", err)
	// Output: 2 losses in the file <nil>
}
