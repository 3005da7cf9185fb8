package checkpoint

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/nn"
)

// pytorch reads the weights of a model from one file and computes with them. Then it writes its own
// weights, and what it computes with them, to another file. It reads and writes with Hugging Face's
// library if that is installed.
const pytorch = `
import json, struct, sys, torch
source, target, result, kind = sys.argv[1:]
dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[kind]
names = {"F32": torch.float32, "BF16": torch.bfloat16}
try:
    from safetensors.torch import load_file, save_file
except ImportError:
    def load_file(path):
        raw = open(path, "rb").read()
        n, = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8:8+n])
        out = {}
        for name, e in head.items():
            if name != "__metadata__":
                lo, hi = e["data_offsets"]
                out[name] = torch.frombuffer(bytearray(raw[8+n+lo:8+n+hi]), dtype=names[e["dtype"]]).reshape(e["shape"])
        return out
    def save_file(tensors, path):
        head, data = {}, b""
        for name, t in tensors.items():
            raw = t.contiguous().view(torch.int16 if t.dtype == torch.bfloat16 else torch.int32).numpy().tobytes()
            head[name] = {"dtype": [k for k, v in names.items() if v == t.dtype][0], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        head = json.dumps(head).encode()
        open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)
model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.GELU(), torch.nn.Linear(13, 3)).to(dtype)
x = (torch.arange(35, dtype=torch.float32).reshape(5, 7) % 11 / 11)
def outputs():
    wide = {k: v.float() for k, v in model.state_dict().items()}
    y = torch.nn.functional.gelu(torch.nn.functional.linear(x, wide["0.weight"], wide["0.bias"]))
    return torch.nn.functional.linear(y, wide["2.weight"], wide["2.bias"]).flatten().tolist()
model.load_state_dict(load_file(source), strict=True)
ours = outputs()
torch.manual_seed(5)
for p in model.parameters():
    torch.nn.init.normal_(p)
save_file({k: v.detach().clone() for k, v in model.state_dict().items()}, target)
json.dump({"ours": ours, "theirs": outputs()}, open(result, "w"))
`

// PyTorch computes the same outputs with weights that this package saved, and this package with
// PyTorch's.
func TestPyTorch(t *testing.T) {
	testkit.Need(t, testkit.Python("import torch"))
	python := testkit.Interpreter()
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		dir := t.TempDir()
		source, target, result := filepath.Join(dir, "ours.safetensors"), filepath.Join(dir, "theirs.safetensors"), filepath.Join(dir, "result.json")
		commtest.OnGoroutines(t, 1, nil, func(pg *comm.ProcessGroup) error {
			o := nn.LinearOptions{DType: dt, Compute: device.Float32}
			net := nn.Sequential(nn.Linear(7, 13, o), nn.GELU(), nn.Linear(13, 3, o))
			if err := nn.Place(net, pg.Device(), 1); err != nil {
				return err
			}
			var x []float32
			for i := range 35 {
				x = append(x, float32(i%11)/11)
			}
			outputs := func() []float32 {
				y := make([]float32, 15)
				autograd.NoGrad(pg.Device(), func() {
					copy(y, device.Elements[float32](net.Forward(autograd.FromSlice(pg.Device(), x, 5, 7)).Tensor()))
				})
				return y
			}
			ours := outputs()
			m, err := Open(pg, filepath.Join(dir, "run"), nil)
			if err != nil {
				return err
			}
			if err := m.Save(t.Context(), 1, State{Model: net}); err != nil {
				return err
			}
			if err := m.Close(); err != nil {
				return err
			}
			if err := Export(filepath.Join(dir, "run"), source, false); err != nil {
				return err
			}
			if out, err := exec.Command(python, "-c", pytorch, source, target, result, dt.String()).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			report, err := LoadWeights(target, net)
			if err != nil {
				return err
			}
			if err := report.Complete(); err != nil {
				return err
			}
			var got struct{ Ours, Theirs []float64 }
			data, err := os.ReadFile(result)
			if err != nil {
				return err
			}
			if err := json.Unmarshal(data, &got); err != nil {
				return err
			}
			near(t, dt.String()+", saved here", got.Ours, ours)
			near(t, dt.String()+", saved by PyTorch", got.Theirs, outputs())
			return nil
		})
	}
}

// near fails unless the numbers are equal up to the order of a sum.
func near(t *testing.T, what string, want []float64, got []float32) {
	t.Helper()
	most := 0.0
	for i, w := range want {
		most = math.Max(most, math.Abs(w-float64(got[i]))/math.Max(1, math.Abs(w)))
	}
	if len(want) != len(got) || !(most < 1e-6) {
		t.Errorf("%s: outputs differ by %v", what, most)
	}
	t.Logf("%s: outputs differ by at most %.2g", what, most)
}
