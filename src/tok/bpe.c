typedef int sl_placeholder_bpe;
