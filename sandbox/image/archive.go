package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Names in archives and layout directories.
const (
	layoutFile     = "oci-layout"
	indexFile      = "index.json"
	dockerFile     = "manifest.json"
	refAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

const (
	maxMembers = 100_000 // files in an archive of images
	maxLinks   = 8       // from one member to another
)

// files is a set of files by name: a directory, or an archive.
type files interface {
	// open returns the file and its size; errNotThere when there is none.
	open(name string) (io.ReadCloser, int64, error)
	io.Closer
}

// dirFiles are those of a directory. No link in it leads out.
type dirFiles struct{ *os.Root }

func openDirFiles(path string) (files, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return dirFiles{root}, nil
}

func (d dirFiles) open(name string) (io.ReadCloser, int64, error) {
	info, err := d.Stat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, fmt.Errorf("%s: %w", name, errNotThere)
	}
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%w: %s is no file", ErrCorrupt, name)
	}
	f, err := d.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// tarFiles are those of an archive, at their places in it.
type tarFiles struct {
	f       *os.File
	members map[string]member
}

// member is a file of an archive, or a link to another.
type member struct {
	at, size int64
	link     string
}

// openTarFiles looks through an archive, which must not be compressed. It owns f.
func openTarFiles(ctx context.Context, f *os.File) (files, error) {
	t := tarFiles{f, make(map[string]member)}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil && len(t.members) >= maxMembers {
			err = fmt.Errorf("%w: more than %d files", ErrTooLarge, maxMembers)
		}
		if err != nil {
			f.Close()
			return nil, readError("archive of images", err)
		}
		m := member{size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader takes whole blocks and no more, so the file is where the
			// content is.
			if m.at, err = f.Seek(0, io.SeekCurrent); err != nil {
				f.Close()
				return nil, err
			}
		case tar.TypeSymlink:
			m.link = path.Join(path.Dir(path.Clean(h.Name)), h.Linkname)
		case tar.TypeLink:
			m.link = path.Clean(h.Linkname)
		default:
			continue
		}
		t.members[path.Clean(h.Name)] = m
	}
}

func (t tarFiles) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean(name)
	for range maxLinks {
		m, ok := t.members[name]
		if !ok {
			return nil, 0, fmt.Errorf("%.100s: %w", name, errNotThere)
		}
		if m.link == "" {
			return io.NopCloser(io.NewSectionReader(t.f, m.at, m.size)), m.size, nil
		}
		name = m.link
	}
	return nil, 0, fmt.Errorf("%w: links to links", ErrCorrupt)
}

func (t tarFiles) Close() error { return t.f.Close() }

// findOnDisk finds an image in a layout directory or an archive. which names one of
// several.
func findOnDisk(fs files, which string, want v1.Platform) (*source, error) {
	if _, _, err := fs.open(layoutFile); err == nil {
		return findInLayout(fs, which, want)
	} else if !errors.Is(err, errNotThere) {
		return nil, err
	}
	return findInDocker(fs, which, want)
}

func findInLayout(fs files, which string, want v1.Platform) (*source, error) {
	raw, err := readFile(fs, indexFile, maxManifest)
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(strings.NewReader(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, indexFile, err)
	}
	list, names := index.Manifests, []string(nil)
	if which != "" {
		list = nil
	}
	for _, d := range index.Manifests {
		called := []string{d.Annotations[refAnnotation], d.Annotations[nameAnnotation], d.Digest.String()}
		names = append(names, called[0])
		for _, n := range called {
			if which != "" && n == which {
				list = append(list, d)
				break
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("image %.100q: %w; there are %.500q", which, errNotThere, names)
	}
	if which == "" && len(list) > 1 && differ(names) {
		return nil, fmt.Errorf("%w: there are several images: choose one with #NAME of %.500q", ErrCorrupt, names)
	}
	get := func(d v1.Descriptor, limit int64) ([]byte, error) {
		f, _, err := openBlob(fs, d)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readBlob(f, d, limit)
	}
	top, err := choose(list, want)
	if err != nil {
		return nil, err
	}
	if raw, err = get(top, maxManifest); err != nil {
		return nil, err
	}
	d, m, err := manifestOf(get, top, raw, want)
	if err != nil {
		return nil, err
	}
	return newSource(get, d, m, want, false, func(_ context.Context, blob v1.Descriptor, _ int) (io.ReadCloser, error) {
		f, _, err := openBlob(fs, blob)
		return f, err
	})
}

// differ reports whether entries of an index have names that differ: then they are
// images of their own, and not one for several platforms.
func differ(names []string) bool {
	for _, n := range names {
		if n != names[0] {
			return true
		}
	}
	return false
}

func openBlob(fs files, d v1.Descriptor) (io.ReadCloser, int64, error) {
	if !validDigest(d.Digest.String()) {
		return nil, 0, fmt.Errorf("%w: digest %.80q", ErrCorrupt, d.Digest)
	}
	return fs.open("blobs/sha256/" + d.Digest.Hex)
}

// dockerImage is an entry of the list in an archive that "docker save" wrote.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func findInDocker(fs files, which string, want v1.Platform) (*source, error) {
	raw, err := readFile(fs, dockerFile, maxManifest)
	if errors.Is(err, errNotThere) {
		return nil, fmt.Errorf("%w: neither %s nor %s is in it", ErrCorrupt, layoutFile, dockerFile)
	}
	if err != nil {
		return nil, err
	}
	var all []dockerImage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, dockerFile, err)
	}
	image, err := chooseDocker(all, which)
	if err != nil {
		return nil, err
	}
	if raw, err = readFile(fs, image.Config, maxConfig); err != nil {
		return nil, err
	}
	env, diffIDs, err := readConfig(raw, want)
	if err != nil {
		return nil, err
	}
	if len(image.Layers) > maxLayers || len(image.Layers) != len(diffIDs) {
		return nil, fmt.Errorf("%w: %d layers, of which %d are described", ErrCorrupt, len(image.Layers), len(diffIDs))
	}
	// The configuration names the layers by their content, so its digest names all.
	s := &source{digest: digestOf(raw), env: env}
	for i, name := range image.Layers {
		s.layers = append(s.layers, layer{
			size: -1, diffID: diffIDs[i],
			open: func(context.Context, int) (io.ReadCloser, error) {
				f, _, err := fs.open(name)
				return f, err
			},
		})
	}
	return s, nil
}

func chooseDocker(all []dockerImage, which string) (dockerImage, error) {
	var tags []string
	for _, image := range all {
		if which == "" && len(all) == 1 {
			return image, nil
		}
		for _, tag := range image.RepoTags {
			if tag == which {
				return image, nil
			}
			tags = append(tags, tag)
		}
	}
	return dockerImage{}, fmt.Errorf("image %.100q: %w; choose one with #NAME of %.500q", which, errNotThere, tags)
}

// readFile reads a small file.
func readFile(fs files, name string, limit int64) ([]byte, error) {
	f, size, err := fs.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > limit {
		return nil, fmt.Errorf("%w: %.80s has %d bytes", ErrTooLarge, name, size)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, readError(name, err)
	}
	return b, nil
}
