"""Code without an image build: the files of a workspace as a layer of an image, or as an archive for its pods."""
