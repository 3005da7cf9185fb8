package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// measured is a line of the JSON file of bench/steps.sh: the steps of one program.
type measured struct {
	Model  string  `json:"model"`
	Name   string  `json:"name"`
	Type   string  `json:"type"`
	Ranks  int     `json:"ranks"`
	StepMS float64 `json:"step_ms"`
}

// typeNames are the names of the types in labels.
var typeNames = map[string]string{"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16"}

// readSteps returns a bar for each model, type and number of ranks: goddp's best divided by PyTorch's best.
func readSteps(path, gpu string) ([]bar, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var labels []string
	best := map[string]*[2]float64{} // by label: milliseconds of goddp and of PyTorch
	for lines := json.NewDecoder(f); ; {
		var m measured
		err := lines.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		var size, batch, layers int
		if err == nil {
			_, err = fmt.Sscanf(m.Model, "--size %d --batch %d --layers %d", &size, &batch, &layers)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		label := fmt.Sprintf("MLP step %d × %d, batch %d, %s, %d × %s", layers, size, batch, typeNames[m.Type], m.Ranks, gpu)
		b := best[label]
		if b == nil {
			b = &[2]float64{}
			best[label], labels = b, append(labels, label)
		}
		who := 1
		if strings.HasPrefix(m.Name, "goddp") {
			who = 0
		}
		if b[who] == 0 || m.StepMS < b[who] {
			b[who] = m.StepMS
		}
	}
	var bars []bar
	for _, label := range labels {
		b := best[label]
		if b[0] == 0 || b[1] == 0 {
			return nil, fmt.Errorf("%s: %s was not measured for both goddp and PyTorch", path, label)
		}
		bars = append(bars, bar{label, b[0] / b[1]})
	}
	return bars, nil
}
