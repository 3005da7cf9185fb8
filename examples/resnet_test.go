package examples

import (
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

// writeImages writes n images of each of two classes: with a bright left half, and with a bright upper half.
func writeImages(t *testing.T, dir string, n int) {
	t.Helper()
	for class := range 2 {
		folder := filepath.Join(dir, fmt.Sprint("class", class))
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			picture := image.NewRGBA(image.Rect(0, 0, 48, 40))
			for y := range 40 {
				for x := range 48 {
					shade := uint8(10 * i)
					if class == 0 && x < 24 || class == 1 && y < 20 {
						shade += 128
					}
					picture.SetRGBA(x, y, color.RGBA{shade, shade, 255 - shade, 255})
				}
			}
			f, err := os.Create(filepath.Join(folder, fmt.Sprint(i, ".png")))
			if err != nil {
				t.Fatal(err)
			}
			if err := png.Encode(f, picture); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestResNetLearns trains on two ranks on images of two classes, and checks the loss and the names of the saved
// parameters.
func TestResNetLearns(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	writeImages(t, filepath.Join(dir, "images"), 8)
	launch(t, dir, 2, "resnet", "--images", "images", "--size", "32", "--depths", "1,1,1,1", "--width", "8", "--batch", "4",
		"--epochs", "15", "--lr", "0.02", "--log", "run.jsonl", "--save", "resnet.safetensors", "--sync-batchnorm")
	if last, err := strconv.ParseFloat(outcome(t, dir)["loss of step 30"], 64); err != nil || !(last < 0.3) {
		t.Errorf("the last loss is %v, %v, want less than 0.3", last, err)
	}
	checkShapes(t, filepath.Join(dir, "resnet.safetensors"), map[string]device.Shape{
		"conv1.weight": {8, 3, 7, 7}, "bn1.running_var": {8}, "bn1.num_batches_tracked": {}, "layer1.0.conv1.weight": {8, 8, 1, 1},
		"layer1.0.downsample.0.weight": {32, 8, 1, 1}, "layer1.0.downsample.1.bias": {32}, "layer2.0.conv2.weight": {16, 16, 3, 3},
		"layer4.0.bn3.weight": {256}, "fc.weight": {2, 256}, "fc.bias": {2},
	})
}

// TestResNetParityWithPyTorch starts with PyTorch's parameters on PyTorch's batch, and checks that the losses
// are PyTorch's.
func TestResNetParityWithPyTorch(t *testing.T) {
	testkit.Long(t)
	dir := t.TempDir()
	sizes := []string{"--width", "8", "--classes", "10", "--warmup", "5", "--steps", "1", "--lr", "0.002"}
	text := testkit.RunPython(t, nil, append([]string{"../bench/torch_resnet.py", "--device", "cpu", "--dtype", "f32", "--depths", "1", "2", "1", "1",
		"--batch", "8", "--image", "64", "--write", dir}, sizes...)...)
	var want, got struct{ Losses []float64 }
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	out := testkit.Output(t, command(t, dir, "resnet", append([]string{"--depths", "1,2,1,1", "--init", "initial.safetensors", "--batch-file", "images.safetensors"}, sizes...)...))
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Losses) == 0 || len(got.Losses) > len(want.Losses) {
		t.Fatalf("%v, want at most %d losses in\n%s", err, len(want.Losses), out)
	}
	for i, l := range got.Losses {
		if w := want.Losses[i]; math.Abs(l-w) > 1e-3*w {
			t.Errorf("step %d: the loss is %v, PyTorch's %v", i, l, w)
		}
	}
}
