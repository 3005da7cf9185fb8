// Package checkpoint saves and loads the state of a training run so that no crash loses the
// last complete checkpoint.
//
//	ck, err := checkpoint.Open(pg, "run1", &checkpoint.Options{Keep: 3, Async: true})
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, ck.Close()) }()
//	var position data.Position
//	state := checkpoint.State{
//		Model: model, Optimizers: []optim.Optimizer{opt},
//		Values: map[string]any{"position": &position, "scaler": scaler},
//	}
//	step, err := ck.Resume(ctx, state) // 0: there is no checkpoint
//	...
//	position = batch.After
//	err = ck.Save(ctx, step, state)
//
// # What lies in the folder
//
//	run1/latest                                          the name of the latest checkpoint
//	run1/step-00001200/manifest.json                     what it holds, with all checksums
//	run1/step-00001200/rank-00000-of-00002.safetensors   the share of each rank
//	run1/step-00001200/rank-00001-of-00002.safetensors
//	run1/.tmp-...                                        what is not complete
//
// Each rank writes a share: an equal part, in bytes, of the state that all ranks have, and its own
// shard of what package ddp/zero divides. Rank 0's share has the model's buffers too. The
// manifest lists each tensor with its parts, which are ranges of elements, so that any number of
// ranks, with or without package ddp/zero, can read the elements that they need. It has a CRC-32C of
// each part and the SHA-256 of itself.
//
// The files are in the format of package safetensors, which PyTorch and Hugging Face
// read. [Export] makes one file of the weights, under their own names; [Import] makes a
// checkpoint of such a file. The command goddp checkpoint does both, and lists, verifies and
// compares.
//
// # Weights alone
//
// [SaveWeights] writes a model's weights to a safetensors file. [LoadWeights] loads such a file,
// or a checkpoint, into a model, in part if need be, such as a network that was trained before
// under a head of another size. Its report says what fitted:
//
//	report, err := checkpoint.LoadWeights("resnet18.safetensors", net)
//	if err != nil {
//		return err
//	}
//	log.Printf("%d weights loaded, not in the file: %q, of another shape: %v", len(report.Loaded), report.Missing, report.Mismatched)
//
// [Report.Complete] is an error unless each weight was loaded and the file has no others.
//
// # When a checkpoint is complete
//
// Each rank writes its file into a temporary folder, syncs the file and the folder, and reports
// to rank 0. When all ranks have, rank 0 writes the manifest, syncs it and the folder, renames
// the folder, syncs the folder above, and replaces the file latest in the same way. So a folder
// of a checkpoint's name with a manifest is durable as a whole, and a process or machine that
// fails at any moment leaves the checkpoint before. A second checkpoint of a step is named
// step-00001200.1 and replaces nothing.
//
// Then rank 0 deletes all but the last Options.Keep checkpoints. Before the first deletion it
// reads the new one back and compares the checksums. If they differ it deletes nothing.
//
// # Network file systems
//
// Ranks on several hosts need a folder that all of them see. Of its file system the package needs
// what NFS promises: a host that opens a file or folder sees what other hosts have synced and closed
// before, and a rename is one step. A rank that looks for another host's file opens its folder
// first, because a host may cache names and sizes. It opens a file again whose handle has become
// stale. An error of a write may come from the write, the sync or the close. A deletion that
// fails, because NFS keeps a folder while a process has a file in it open, is logged, and the next
// Open tries again. There are no locks: only one job at a time may use a folder.
//
// # Asynchronous saves
//
// With Options.Async, Save enqueues copies of this rank's share to page-locked memory on a
// stream of its own, behind what the compute stream was given, and returns. The forward and
// backward passes of the next step run beside these copies. The next update is enqueued behind
// them ([autograd.HoldWrites]), so it cannot overwrite what they read, and the host waits for
// nothing. A goroutine, the writer, does the rest: it waits for the copies, writes them, and
// exchanges reports with the writers of the other ranks through the group's store
// ([comm.ProcessGroup.Store]). Only the program's goroutine runs collectives.
//
// If a rank dies, the writers of the others wait until Options.Timeout, and Close in a broken group
// waits for some seconds. [Manager.Stats] tells how long the last save took. The program
// bench/checkpoint measures what saves cost a step.
//
// # Failure
//
// If a save fails, because the disk is full or a rank died, all ranks get an error and the
// earlier checkpoints stay. If the latest checkpoint is corrupt, Resume logs that and takes the one
// before.
//
// A job that golaunch restarts (--max-restarts) calls Resume as in its first attempt. After
// [ddp.Recover] the program opens a manager in the new group. If no rank has a consistent state
// ([ddp.LostStateError]), the program resumes from the latest checkpoint instead.
package checkpoint
