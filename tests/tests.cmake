# sluice_test(folder name [more sources])
