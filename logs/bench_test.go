package logs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// benchLimit bounds the disk space that a benchmark uses.
const benchLimit = 256 << 20

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			d, _ := openDir(b)
			p := make([]byte, size)
			var w *Writer
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for written := benchLimit; b.Loop(); written += size {
				if written >= benchLimit {
					b.StopTimer()
					if w != nil {
						must(b, w.Close())
					}
					must(b, d.Remove(b.Context(), "e1"))
					w = create(b, d, "e1", testOptions)
					written = 0
					b.StartTimer()
				}
				w.Write(Stdout, testTime, p)
			}
			must(b, w.Close())
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{64, 4 << 10, 64 << 10} {
		for _, indexed := range []bool{true, false} {
			b.Run(fmt.Sprintf("%d/index=%v", size, indexed), func(b *testing.B) {
				d, path := openDir(b)
				w := create(b, d, "e1", testOptions)
				total := min(benchLimit, size*(1<<18))
				for range total / size {
					w.Write(Stdout, testTime, make([]byte, size))
				}
				must(b, w.Close())
				if !indexed {
					must(b, os.Remove(filepath.Join(path, IndexName("e1"))))
				}
				buf := make([]byte, 256<<10)
				b.SetBytes(int64(total))
				for b.Loop() {
					r := open(b, d, "e1", Cursor{})
					var err error
					for err == nil {
						_, err = r.Next(buf)
					}
					if !errors.Is(err, io.EOF) || r.Cursor().Stdout != uint64(total) {
						b.Fatalf("read to %v: %v", r.Cursor(), err)
					}
					must(b, r.Close())
				}
			})
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	d, _ := openDir(b)
	content := make([]byte, 200)
	for _, noSync := range []bool{true, false} {
		b.Run(fmt.Sprintf("nosync=%v", noSync), func(b *testing.B) {
			for b.Loop() {
				must(b, d.WriteStatus("e1", content, StatusOptions{Owner: KeepOwner, NoSync: noSync}))
			}
		})
	}
}

// BenchmarkWholeExec measures one short exec: its files, a line of output, and a sync.
func BenchmarkWholeExec(b *testing.B) {
	d, _ := openDir(b)
	n := 0
	for b.Loop() {
		n++
		id := fmt.Sprintf("e%d", n)
		must(b, d.WriteStatus(id, []byte("running"), StatusOptions{Owner: KeepOwner, NoSync: true}))
		w := create(b, d, id, testOptions)
		w.Write(Stdout, testTime, []byte("hello\n"))
		must(b, w.Sync())
		must(b, w.Close())
		must(b, d.WriteStatus(id, []byte("exited"), statusOptions))
	}
}
