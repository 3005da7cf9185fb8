// Command parity repeats trainings that torch_parity.py has made with PyTorch DDP and FSDP2, from the
// same weights and samples on as many ranks, and compares the results:
//
//	golaunch --nproc-per-node 2 torch_parity.py --out DIR
//	golaunch --nproc-per-node 2 parity DIR/*.safetensors
//
// test/parity.sh runs both. Rank 0 prints a line for each quantity of each case. The exit code is 1 if
// a quantity misses its limit; [training.limits] returns the limits.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/goddp/goddp/comm"
)

func parity(ctx context.Context) error {
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	defer pg.Close()
	if pg.Rank() == 0 {
		fmt.Printf("ranks: %d, device: %v, backend: %s\n", pg.Size(), pg.Device(), pg.Backend())
		fmt.Println(row("case", "buckets", "quantity", "measured", "limit", "", ""))
	}
	missed := 0
	for _, path := range flag.Args() {
		checks, err := run(ctx, pg, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, c := range checks {
			fmt.Println(c)
			if !c.ok() {
				missed++
			}
		}
	}
	if missed > 0 {
		return fmt.Errorf("limits missed: %d", missed)
	}
	return nil
}

// run trains the case of a recording and compares it with PyTorch. It returns the checks on rank 0, and
// none on the other ranks.
func run(ctx context.Context, pg *comm.ProcessGroup, path string) ([]check, error) {
	rec, err := openRecording(path)
	if err != nil {
		return nil, err
	}
	defer rec.Close()
	if rec.World != pg.Size() {
		return nil, fmt.Errorf("PyTorch had %d ranks, this job has %d", rec.World, pg.Size())
	}
	if here := os.Getenv("GODDP_ALLOW_TF32") == "1"; rec.TF32 != here {
		return nil, fmt.Errorf("PyTorch allowed TF32: %v; this job, by GODDP_ALLOW_TF32: %v", rec.TF32, here)
	}
	switch rec.DType {
	case "float32":
		return trainAndJudge[float32](ctx, pg, rec)
	case "float64":
		return trainAndJudge[float64](ctx, pg, rec)
	}
	return nil, fmt.Errorf("parameters of type %q, want float32 or float64", rec.DType)
}

func trainAndJudge[T float32 | float64](ctx context.Context, pg *comm.ProcessGroup, rec *recording) ([]check, error) {
	got, err := train[T](ctx, pg, rec)
	if err != nil {
		return nil, err
	}
	ranks, err := comm.GatherObject(ctx, pg, got.shared, 0)
	if err != nil || pg.Rank() != 0 {
		return nil, err
	}
	return judge[T](rec, got, ranks)
}

func main() {
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: parity FILE...") }
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	comm.Main(parity)
}
