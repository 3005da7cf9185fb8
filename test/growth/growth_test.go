package main

import "testing"

// TestJudgeFindsGrowthBySteps checks that judge reports memory that grows with the steps, but neither
// buffers that fill at the beginning nor memory that goes up and down.
func TestJudgeFindsGrowthBySteps(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		held func(step int) float64
		ok   bool
	}{
		"flat":                        {"heap_bytes", func(int) float64 { return 5e6 }, true},
		"a buffer":                    {"device_bytes", func(step int) float64 { return float64(min(step, 150)) * 1e6 }, true},
		"up and down":                 {"heap_bytes", func(step int) float64 { return 5e6 + float64(step/10%7)*1e6 }, true},
		"a kilobyte in each step":     {"heap_bytes", func(step int) float64 { return 5e6 + float64(step)*1024 }, false},
		"a goroutine in each hundred": {"goroutines", func(step int) float64 { return float64(20 + step/100) }, false},
		"device memory":               {"device_bytes", func(step int) float64 { return 1e8 + float64(step)*2048 }, false},
		"resident memory":             {"rss_bytes", func(step int) float64 { return 1e8 + float64(step)*10e3 }, false},
	} {
		var samples []sample
		for step := 10; step <= 2000; step += 10 {
			samples = append(samples, sample{step, map[string]float64{c.kind: c.held(step)}})
		}
		if got := judge(job{name: name}, samples); got != c.ok {
			t.Errorf("%s: %v, want %v", name, got, c.ok)
		}
	}
}
